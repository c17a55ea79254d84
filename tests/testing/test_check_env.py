"""`check_env` finds each classic defect, and names the cause."""

import pytest

from forkgym import testing
from forkgym.testing import ConformanceError, diagnosis

from . import broken_envs as broken


def finding_of(env, **kwargs):
    with pytest.raises(ConformanceError) as caught:
        testing.check_env(env, **kwargs)
    return caught.value.findings[0]


def test_a_sound_environment_passes():
    testing.check_env(broken.Sound)


def test_a_module_global_generator_is_found():
    found = finding_of(broken.GlobalGenerator)
    assert found.promise == "determinism"
    assert "module-global generator" in found.reason


def test_numpys_module_global_generator_is_found():
    assert "module-global generator" in finding_of(broken.NumpyGlobalGenerator).reason


def test_draws_that_are_alike_by_chance_are_not_taken_for_the_clocks_doing():
    """Error rate: 16 episodes that toss one coin agree with probability 2**-15; 16 checks, so below 0.1 %."""
    factory = broken.GlobalCoin
    script = diagnosis.Script(seed=0, actions=(0, 0, 0))
    reasons = [diagnosis.why_not_deterministic(factory, script) for _ in range(16)]
    assert all("module-global generator" in reason for reason in reasons)


def test_operating_system_entropy_is_found():
    found = finding_of(broken.SystemEntropy)
    assert found.promise == "determinism"
    assert "operating system's entropy" in found.reason


def test_a_generator_that_is_not_carried_is_found():
    found = finding_of(broken.UndeclaredGenerator)
    assert found.promise == "fork"
    assert "state is incomplete" in found.reason


def test_a_list_shared_between_forks_is_found():
    found = finding_of(broken.SharedList)
    assert found.promise == "isolation"
    assert "write to the same object" in found.reason


def test_an_unforked_time_limit_is_found():
    found = finding_of(broken.UnforkedTimeLimit.make)
    assert found.promise == "fork"
    assert "step counter (a TimeLimit wrapper" in found.reason


def test_re_creation_by_ezpickle_is_found():
    found = finding_of(broken.Recreated)
    assert found.promise == "fork"
    assert "EzPickle" in found.reason


def test_a_hidden_clock_is_found():
    found = finding_of(broken.HiddenClock)
    assert found.promise == "determinism"
    assert "clock" in found.reason


def test_a_clock_that_stands_still_while_the_check_runs_is_found():
    assert "clock" in finding_of(broken.CoarseClock).reason


def test_a_field_left_out_of_the_state_is_found():
    assert "state is incomplete" in finding_of(broken.ForgottenField).reason


def test_state_in_a_class_variable_is_found():
    assert "class or module variables" in finding_of(broken.ClassVariable).reason


def test_an_observation_outside_its_space_is_found():
    found = finding_of(broken.OutsideItsSpace)
    assert found.promise == "api"
    assert "not in Discrete(4)" in found.detail


def test_the_error_lists_each_promise_with_its_reason():
    with pytest.raises(ConformanceError, match=r"\[isolation\].*\n.*write to the same object"):
        testing.check_env(broken.SharedList)


def test_a_gymnasium_environment_without_verbs_is_refused_with_the_remedy():
    import gymnasium

    with pytest.raises(TypeError, match=r"forkgym\.wrap"):
        testing.check_env(lambda: gymnasium.make("CartPole-v1"))


def test_a_live_environment_is_checked_without_being_touched():
    env = broken.Sound()
    env.reset(seed=1)
    before = env.state_hash()
    testing.check_env(env)
    assert env.state_hash() == before


def test_a_returned_array_that_is_the_state_itself_is_found():
    found = finding_of(broken.ReturnsItsState)
    assert found.promise == "isolation"
    assert "Return copies" in found.reason


def test_samples_that_the_environment_refuses_are_found():
    found = finding_of(broken.RefusesItsOwnSamples)
    assert found.promise == "actions"
    assert "takes actions in Discrete(3)" in found.detail
