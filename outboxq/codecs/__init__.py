"""Values to strict JSON and back, for ``payload``: ``strict`` ← ``values`` ← ``typed``, ``records`` ← ``annotations``."""
