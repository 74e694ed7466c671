"""From a DataLoader to batches on the device, divided among the ranks."""
