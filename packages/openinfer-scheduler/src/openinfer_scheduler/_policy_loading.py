"""Finding scheduling policies by name."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from openinfer_contract import PluginGroup
from openinfer_scheduler._policy import Policy, check_policy
from openinfer_scheduler.errors import UnknownPolicy, UnusablePolicy

DEFAULT_POLICY = "fcfs"
"""Name of the policy that serves if none is given, and that replaces a faulty one."""


def _make(kind: Any) -> Policy:
    """Makes a policy from an imported object, which need not be a policy class.

    Raises:
        TypeError: the result is no policy. The class itself may raise anything.
    """
    policy: Policy = kind()
    check_policy(policy)
    return policy


POLICIES: PluginGroup[Policy] = PluginGroup("openinfer.schedulers", "scheduling policy", _make)


def installed_policies() -> tuple[str, ...]:
    """Returns the names of installed policies, sorted, without importing them."""
    return POLICIES.names()


@cache
def default_policy() -> Policy:
    """Returns the policy named `DEFAULT_POLICY`; loaded once, since it keeps no state."""
    return load_policy(DEFAULT_POLICY)


def load_policy(name: str) -> Policy:
    """Imports and makes a policy.

    Args:
        name: name of an installed policy, or `module:Class` for any importable class. While that
            module is imported, the current folder is the last entry of `sys.path`.

    Raises:
        UnknownPolicy: no such policy; the message names the installed ones.
        PluginError: the installed policy of that name does not load, or is no policy.
        UnusablePolicy: the class cannot be made without arguments, or lacks methods.
    """
    try:
        return POLICIES.load(name)
    except KeyError:
        pass  # no installed policy has this name
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UnknownPolicy(name, installed_policies())
    with _current_folder_on_path():
        try:
            found = getattr(import_module(module_name), attribute)
        except (ImportError, AttributeError) as error:
            raise UnknownPolicy(name, installed_policies(), str(error)) from error
        except Exception as error:  # importing a user's module may raise anything
            raise UnusablePolicy(name, f"its module raised {brief(error)}") from error
        try:
            return _make(found)
        except Exception as error:
            raise UnusablePolicy(name, f"it cannot be used, {brief(error)}") from error


@contextmanager
def _current_folder_on_path() -> Iterator[None]:
    # A console script has its own folder on the path, not the current one. The entry is removed
    # again: a folder there may have the name of a library that is imported later.
    sys.path.append(here := os.getcwd())
    try:
        yield
    finally:
        # The path may have contained the folder before: remove the last occurrence.
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]


def brief(error: Exception) -> str:
    """Returns the type and text of an error that a user's code raised; its `__str__` may raise."""
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"
    except Exception:
        return kind
