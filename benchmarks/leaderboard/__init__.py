"""Every planner on many traces: asked (`survey`), kept (`ledger`), summed up (`summaries`)."""
