"""Graph passes of ours that run inside Inductor."""
