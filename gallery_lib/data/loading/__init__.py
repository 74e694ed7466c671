"""Bring batches from a DataLoader to the device, and divide them among the ranks."""
