"""What the router decides, as plain code over plain data: no grpc, no asyncio, no clock, no files."""
