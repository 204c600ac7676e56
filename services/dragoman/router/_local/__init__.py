"""The ports on this machine: processes under guards, entry points and manifests, files."""
