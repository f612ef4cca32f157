"""Values to strict JSON and back, for ``payload``: ``strict`` ← ``values`` ← ``records`` ← ``annotations``."""
