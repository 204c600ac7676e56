"""The wire formats of the scripted model, one module per API."""
