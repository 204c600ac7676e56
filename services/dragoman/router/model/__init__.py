"""What all packages of the router share: records, errors of several services, tasks. No I/O."""
