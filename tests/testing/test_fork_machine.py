"""The fork machine passes on a sound environment and fails, for the right reason, on each classic defect."""

import re
import unittest

import pytest
from hypothesis import Phase, settings

from forkgym import testing

from . import broken_envs as broken

TestSound = testing.fork_machine(broken.Sound, max_examples=30).TestCase


class MachineByHand(testing.ForkMachine):
    """The long form: a subclass with a factory."""

    factory = staticmethod(broken.Sound)


TestMachineByHand = MachineByHand.TestCase
TestMachineByHand.settings = settings(max_examples=10, deadline=None)


def failure_of(env):
    """The first assertion that the machine raises, without hypothesis' shrinking (it would take most of the time)."""
    machine = testing.fork_machine(env, max_examples=150, steps=25)
    case = machine.TestCase
    case.settings = settings(case.settings, phases=[Phase.generate], database=None, derandomize=True)
    result = unittest.TestResult()
    case("runTest").run(result)
    assert result.failures + result.errors, f"the machine found nothing wrong with {env}"
    return (result.failures + result.errors)[0][1]


DEFECTS = [
    (broken.GlobalGenerator, "module-global generator"),
    (broken.SystemEntropy, "operating system's entropy"),
    (broken.UndeclaredGenerator, "state is incomplete"),
    (broken.SharedList, "write to the same object"),
    (broken.UnforkedTimeLimit.make, r"step counter \(a TimeLimit wrapper"),
    (broken.Recreated, "EzPickle"),
    (broken.HiddenClock, "depends on the clock"),
    (broken.CoarseClock, "depends on the clock"),
    (broken.ForgottenField, "state is incomplete"),
    (broken.BlindHash, "_get_state leaves out something"),
    (broken.ClassVariable, "class or module variables"),
]


@pytest.mark.parametrize(("env", "reason"), DEFECTS, ids=[reason for _, reason in DEFECTS])
def test_the_machine_fails_on_a_broken_environment_for_the_right_reason(env, reason):
    assert re.search(reason, failure_of(env))
