"""Arguments and results as strict JSON, and back: ``strict`` ← ``values`` ← ``typed``, ``records`` ← ``annotations`` ← ``parameters``."""
