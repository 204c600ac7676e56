"""Skills and other files that a run brings along, and how they reach its agent."""
