"""Both networks have the same parameters at work, but for the routers."""

import pytest

from attention_residuals import Decoder, InputError
from attention_residuals.configs import to_plain
from attention_residuals.experiments.compute import matrix_parameters
from attention_residuals.experiments.moe.shapes import Networks, sizes
from attention_residuals.experiments.moe.study import MixtureStudy
from attention_residuals.experiments.studies.common import thin_decoder, with_arm


@pytest.mark.parametrize("arm", ["standard", "block"])
@pytest.mark.parametrize(
    ("layers", "experts", "top_k", "shared"), [(10, 8, 2, 1), (4, 8, 2, 1), (7, 6, 1, 0), (12, 4, 3, 2)]
)
def test_routers_are_all_that_a_mixture_has_beyond_the_dense_model(
    layers: int, experts: int, top_k: int, shared: int, arm: str
) -> None:
    networks = Networks(layers, experts, top_k, shared)
    dense, mixture = (sizes(with_arm(model, arm)) for model in (networks.dense, networks.mixture))
    assert mixture.router == layers * thin_decoder(layers).width * experts and dense.router == dense.idle == 0
    assert mixture.active - mixture.router == dense.active
    assert mixture.embedding == dense.embedding
    assert matrix_parameters(to_plain(networks.mixture)) - matrix_parameters(to_plain(networks.dense)) == mixture.router


@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_at_work_are_the_matrices_that_multiply_every_token_and_the_norms(kind: str) -> None:
    model = getattr(Networks(3, 8, 2, 1), kind)
    vectors = sum(parameter.numel() for parameter in Decoder(model).parameters() if parameter.ndim == 1)
    assert vectors > 0 and sizes(model).active == matrix_parameters(to_plain(model)) + vectors


def test_networks_differ_in_their_channel_mixers_alone() -> None:
    networks = Networks(10, 8, 2, 1)
    dense, mixture = to_plain(networks.dense), to_plain(networks.mixture)
    assert {key for key in dense if dense[key] != mixture[key]} == {"channels"}
    assert dense["channels"][0]["hidden"] == thin_decoder(10).mlp_width == 3 * mixture["channels"][0]["hidden"]


def test_the_default_is_small() -> None:
    assert all(sizes(model).active < 1_000_000 for model in MixtureStudy().networks.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"experts": 0}, "experts is 0"), ({"top_k": 0}, "top_k is 0"), ({"shared": -2}, "shared is -2; it must be")],
)
def test_numbers_that_no_mixture_has_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Networks(**{"layers": 2, "experts": 4, "top_k": 2, "shared": 1, **changes})
