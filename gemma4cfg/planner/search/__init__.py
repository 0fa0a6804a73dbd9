"""The best plan by an objective: every combination of what the configuration leaves open, measured, bounded and ranked.

``candidates`` lists the combinations, ``measure`` drafts them, ``ranking`` orders what fits and says why the rest lost.
"""

from gemma4cfg.planner.search.search import SearchResult, search_plans

__all__ = ["SearchResult", "search_plans"]
