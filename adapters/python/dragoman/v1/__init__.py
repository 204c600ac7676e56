"""Generated from proto/dragoman/v1 by scripts/generate-stubs. Do not edit."""
