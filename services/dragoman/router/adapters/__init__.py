"""Adapters: discovery, processes under guards, configured addresses, and the channels to them."""
