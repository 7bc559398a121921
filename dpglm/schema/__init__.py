"""Public facts about the columns of a table, and features encoded by them alone.

Scaling by the range of the rows, or encoding the categories that happen to occur in them, spends
privacy that nobody accounts for. A `Schema` states both in advance, from a data dictionary.
"""

from dpglm.exceptions import absent
from dpglm.schema.columns import (
    BooleanColumn,
    CategoricalColumn,
    DateColumn,
    NumericColumn,
    OrdinalColumn,
    Target,
    TextColumn,
)
from dpglm.schema.encoder import PublicBoundsScaler
from dpglm.schema.table import Schema, load_schema

__all__ = [
    "BooleanColumn", "CategoricalColumn", "DateColumn", "NumericColumn", "OrdinalColumn",
    "PublicBoundsScaler", "Schema", "Target", "TextColumn", "load_schema",
]  # fmt: skip

__getattr__ = absent(__name__)
