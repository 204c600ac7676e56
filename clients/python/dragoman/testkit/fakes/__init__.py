"""Stand-ins: a scripted server of the contract, and an agent program that records what it emits."""
