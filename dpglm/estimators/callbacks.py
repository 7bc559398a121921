"""scikit-learn's progress callbacks, from version 1.9 on; before it, fits run without them.

Callbacks get copies of the data and released coefficients. No guarantee rests on this file.
"""

import copy
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from dpglm.exceptions import PrivacyWarning, advising

try:
    from sklearn.callback import CallbackSupportMixin
    from sklearn.callback import with_callbacks as _supported
except ImportError:

    class CallbackSupportMixin:
        """Support no callbacks."""

    def _supported(method: Callable) -> Callable:
        """Let a method run as it is, in a frame of its own, as with callbacks."""

        @wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        return run


def with_callbacks(method: Callable) -> Callable:
    """Let a fit support callbacks, and say what there is instead of arguments it does not have."""
    return advising(_supported(method))


# Callbacks that observed a fit, by id: they may hold scores without noise. Clones share them, and
# so does the estimator that a search clones.
_witnesses: WeakValueDictionary[int, Any] = WeakValueDictionary()


class Callbacks(CallbackSupportMixin):
    """An estimator that reports its iterations to callbacks, and is pickled without them."""

    def _reports(
        self,
        n_iter: int,
        shape: tuple[int, ...],
        X: Any,
        y: Any,
        attributes: Callable[[np.ndarray], dict[str, np.ndarray]],
    ) -> tuple[Callable[[int, np.ndarray], None], Callable[[], None]]:
        """Return the functions to call after each iteration and after the last one.

        Callbacks are trusted code. They get copies of rows in memory, as clipping rests on norms
        that were taken before. A request to stop is refused, because it may depend on scores
        without noise. An iteration without a step, as an adaptive fit's last, is an empty task.
        """
        _witnesses.update({id(callback): callback for callback in self._skl_callbacks})
        context = self._init_callback_context(max_subtasks=n_iter)
        told = {"estimator": self, "X": getattr(X, "copy", None), "y": getattr(y, "copy", None)}
        context.call_on_fit_task_begin(**told)
        iteration = None

        def begin(t: int, coef: np.ndarray) -> None:
            nonlocal iteration
            iteration = context.subcontext(task_name="iteration") if t < n_iter else None
            if iteration is not None:
                state = attributes(coef)
                iteration.call_on_fit_task_begin(**told, reconstruction_attributes=state)

        def finish_step(t: int, coef: np.ndarray) -> None:
            state = attributes(coef)
            stop = iteration.call_on_fit_task_end(**told, reconstruction_attributes=state)
            if stop:
                warnings.warn(
                    "A callback asked to stop the fit; the request is ignored, because the "
                    "iteration at which a fit stops may reveal scores without noise.",
                    PrivacyWarning,
                    stacklevel=8,
                )
            begin(t + 1, coef)

        def finish_fit() -> None:
            if iteration is not None:
                iteration.call_on_fit_task_end(estimator=self)
            state = {"coef_": self.coef_, "intercept_": self.intercept_}
            context.call_on_fit_task_end(**told, reconstruction_attributes=state)

        begin(0, np.zeros(shape))
        return finish_step, finish_fit

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without callbacks that observed a fit."""
        state = dict(super().__getstate__())
        if "_skl_callbacks" in state:
            callbacks = state["_skl_callbacks"]
            state["_skl_callbacks"] = [c for c in callbacks if id(c) not in _witnesses]
        return state


def picklable_copy(estimator: Any) -> Any:
    """Return a copy without callbacks and an auditor's vault, to be sent to other machines."""
    copied = copy.copy(estimator)
    for name in ("_skl_callbacks", "_vault_type"):
        vars(copied).pop(name, None)
    return copied
