from collections.abc import Coroutine
from typing import Any

import pytest

from openinfer_testing.engine import EngineConformance, EngineFactory


class TestInProcess(EngineConformance):
    @pytest.fixture
    def engine_factory(self, in_process_factory: EngineFactory) -> EngineFactory:
        return in_process_factory


class _Lent(EngineConformance):
    @pytest.fixture(autouse=True)
    def _keep_loop(self, lender: Any) -> None:
        self._runner = lender.runner

    def run(self, check: Coroutine[Any, Any, None]) -> None:
        self._runner.run(check)


class TestSocketpair(_Lent):
    @pytest.fixture
    def engine_factory(self, lender: Any) -> EngineFactory:
        return lender.socketpair


class TestUnix(_Lent):
    @pytest.fixture
    def engine_factory(self, lender: Any) -> EngineFactory:
        return lender.unix


class TestTcp(_Lent):
    @pytest.fixture
    def engine_factory(self, lender: Any) -> EngineFactory:
        return lender.tcp


class TestSupervised(_Lent):
    @pytest.fixture
    def engine_factory(self, lender: Any) -> EngineFactory:
        return lender.supervised
