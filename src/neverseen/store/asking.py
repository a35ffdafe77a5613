"""What if, asked of a store: what is held as it would be without some samples. Nothing is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from neverseen.backbones import Backbone
from neverseen.backbones.reading import to_predict
from neverseen.holdings import Change
from neverseen.model.exact import ExactModel
from neverseen.model.without import LeftOut, Without, left_out


class Asking(ABC):
    """What `Store` is asked, beside what it is told. It takes what `Store.forget` takes, and refuses the same."""

    backbone: Backbone

    @abstractmethod
    def forgetting(
        self,
        given: Any,
        labels: Any = None,
        *,
        ids: Iterable[Any] | None = None,
        owners: Iterable[Any] | None = None,
        owner: Any = None,
    ) -> Change:
        """Return the change that a forget makes."""

    @abstractmethod
    def rehearse(self, change: Change) -> None:
        """Raise why a change may not be made, if that is so."""

    @abstractmethod
    def _exact(self) -> ExactModel: ...

    def without(
        self,
        given: Any,
        labels: Any = None,
        *,
        ids: Iterable[Any] | None = None,
        owners: Iterable[Any] | None = None,
        owner: Any = None,
    ) -> Without:
        """Return what is held, published or not, as it would be if these samples were forgotten.

        Nothing is changed or written. See `AnalyticClassifier.without`.
        """
        apart, change = self._apart(self.forgetting(given, labels, ids=ids, owners=owners, owner=owner))
        return Without.of(apart, change, lambda samples: to_predict(self.backbone, samples).quantised)

    def leave_one_out(
        self,
        given: Any,
        labels: Any = None,
        *,
        ids: Iterable[Any] | None = None,
        owners: Iterable[Any] | None = None,
        owner: Any = None,
    ) -> Iterator[LeftOut]:
        """Return, for each of these samples, what the model says about it without having learned this one sample.

        Nothing is changed or written. See `AnalyticClassifier.leave_one_out`.
        """
        return left_out(*self._apart(self.forgetting(given, labels, ids=ids, owners=owners, owner=owner)))

    def _apart(self, change: Change) -> tuple[ExactModel, Change]:
        model = self._exact()
        with model.locked():
            self.rehearse(change)
            return model.apart() if len(change) else model, change
