"""The demonstration: several methods trained side by side at equal tokens, then one table and one picture.

What is trained on what is said in ``demo.toml`` beside this file; nothing here knows an environment or a method.
"""

from forkgym.demo.compare import DemoError, DemoPlan, MethodResult, load_plan, run_demo

__all__ = ["DemoError", "DemoPlan", "MethodResult", "load_plan", "run_demo"]
