"""A small template language: values with filters, conditions, loops, and text that is escaped unless told otherwise."""

from .engine import Template, render
from .filters import FILTERS, escape
from .parser import TemplateError

__all__ = ["FILTERS", "Template", "TemplateError", "escape", "render"]
