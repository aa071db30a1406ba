"""Pages of flows and of flow runs: lists, drawings, forms."""
