"""What a run changed in its workspace."""
