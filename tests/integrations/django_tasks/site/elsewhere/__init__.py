"""No app: its tasks may be imported because OPTIONS says so."""
