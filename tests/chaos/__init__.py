"""The chaos suite: whatever is killed, no event is lost, repeated or invented, and no process is left.

``make test-chaos SEED=7 KILLS=500`` runs it; a case that fails prints how it is repeated alone.
"""
