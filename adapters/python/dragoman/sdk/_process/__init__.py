"""An agent's processes: started under a guard, read, limited in time, and ended."""
