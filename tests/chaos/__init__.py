"""The chaos suite: whatever is killed, no event is lost, told twice or made up, and nothing is left running.

``make test-chaos SEED=7 KILLS=500`` runs it; a case that fails prints how it is repeated alone.
"""
