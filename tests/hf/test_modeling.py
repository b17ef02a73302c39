"""The wrappers: to the bit the decoder they wrap; masks, positions, hidden states, loss; sentences for wrong input."""

import pytest
import torch
import torch.nn.functional as F

from attention_residuals import Additive, InputError, Residual, build_decoder
from attention_residuals.hf import AttnResConfig, AttnResForCausalLM, AttnResModel
from attention_residuals.inference import forward_with_taps
from tests.hf.support import BLOCK, STREAMS, config, decoder_config, model, tokens


@pytest.mark.parametrize("residual", STREAMS)
def test_logits_are_those_of_the_decoder_to_the_bit(residual: Residual) -> None:
    wrapped, ids = model(residual), tokens()
    expected = wrapped.model(ids)
    ones = torch.ones_like(ids)
    for found in (wrapped(ids), wrapped(ids, attention_mask=ones), wrapped(ids, use_cache=False)):
        assert torch.equal(found.logits, expected)
    assert torch.equal(wrapped(inputs_embeds=wrapped.model.embedding(ids)).logits, expected)
    assert torch.equal(wrapped(ids, return_dict=False)[0], expected)


def test_features_are_those_of_the_backbone() -> None:
    wrapped, ids = AttnResModel(config()).eval(), tokens()
    assert torch.equal(wrapped(ids).last_hidden_state, wrapped.model(ids))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("seed", [0, 7])
def test_a_new_model_is_initialised_as_ours(seed: int, tied: bool) -> None:
    torch.manual_seed(seed)
    torch.rand(3)  # what was drawn before does not matter
    fields = {**config().to_dict(), "tie_word_embeddings": tied}
    found = AttnResForCausalLM(AttnResConfig(**fields)).model.state_dict()
    expected = build_decoder(decoder_config(tied_embeddings=tied), seed=seed).state_dict()
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_decoder_is_wrapped_and_not_copied() -> None:
    decoder = build_decoder(decoder_config(), seed=0)
    wrapped = AttnResForCausalLM.from_decoder(decoder, eos_token_id=0)
    assert wrapped.model is decoder and wrapped.config.eos_token_id == 0


@pytest.mark.parametrize("residual", [Additive(), BLOCK])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing_and_a_wrong_mask_does(residual: Residual, side: str) -> None:
    wrapped, ids, pad = model(residual), tokens(1, 6), torch.zeros(1, 4, dtype=torch.int64)
    parts = [(pad, 0), (ids, 1)] if side == "left" else [(ids, 1), (pad, 0)]
    padded = torch.cat([part for part, _ in parts], dim=1)
    mask = torch.cat([torch.full_like(part, value) for part, value in parts], dim=1)
    real = slice(4, None) if side == "left" else slice(None, 6)
    expected = wrapped(ids).logits
    bound = 1e-5 * expected.abs().max()
    assert (wrapped(padded, attention_mask=mask).logits[:, real] - expected).abs().max() < bound
    if side == "left":  # on the right the causal rule alone hides it
        assert (wrapped(padded).logits[:, real] - expected).abs().max() > 1000 * bound


def test_a_mask_of_four_dimensions_is_taken_as_it_is() -> None:
    wrapped, ids = model(), tokens(1, 6)
    causal = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    torch.testing.assert_close(wrapped(ids, attention_mask=causal).logits, wrapped(ids).logits)


def test_positions_that_begin_anew_are_texts_in_a_row() -> None:
    wrapped, first, second = model(), tokens(1, 4, seed=1), tokens(1, 5, seed=2)
    positions = torch.cat((torch.arange(4), torch.arange(5))).unsqueeze(0)
    found = wrapped(torch.cat((first, second), 1), position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(found[:, 4:], wrapped(second).logits)


def test_logits_to_keep() -> None:
    wrapped, ids = model(), tokens()
    every = wrapped(ids).logits
    torch.testing.assert_close(wrapped(ids, logits_to_keep=2).logits, every[:, -2:])
    places = torch.tensor([0, 3])
    torch.testing.assert_close(wrapped(ids, logits_to_keep=places).logits, every[:, places])


def test_the_loss_is_shifted_masked_and_scaled() -> None:
    wrapped, ids = model(), tokens()
    labels = ids.clone()
    labels[0, :5] = -100
    logits, target = wrapped.model(ids)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    torch.testing.assert_close(wrapped(ids, labels=labels).loss, F.cross_entropy(logits, target))
    whole = F.cross_entropy(logits, target, reduction="sum")
    torch.testing.assert_close(wrapped(ids, labels=labels, num_items_in_batch=50).loss, whole / 50)


@pytest.mark.parametrize("residual", STREAMS)
def test_hidden_states_are_what_the_layers_read(residual: Residual) -> None:
    wrapped, ids = model(residual), tokens()
    found = wrapped(ids, output_hidden_states=True)
    logits, taps = forward_with_taps(wrapped.model, ids, range(6))
    assert len(found.hidden_states) == 4 and torch.equal(found.logits, logits)
    torch.testing.assert_close(found.hidden_states[0], wrapped.model.embedding(ids))
    for layer in (1, 2):
        torch.testing.assert_close(found.hidden_states[layer], taps[2 * layer - 1].mixture)
    torch.testing.assert_close(found.hidden_states[3], wrapped.model.norm(taps[5].mixture))
    base = AttnResModel(wrapped.config)
    base.model.load_state_dict(wrapped.model.state_dict(), strict=False)
    features = base(ids, output_hidden_states=True)
    assert all(map(torch.equal, features.hidden_states, found.hidden_states))
    assert wrapped(ids).hidden_states is None


def test_wrong_input_is_one_sentence() -> None:
    wrapped, ids = model(), tokens()
    for wrong, told in ((40, "token 40"), (-1, "token -1")):
        with pytest.raises(InputError, match=rf"input_ids has {told}; the model's tokens run from 0 to 39"):
            wrapped(torch.full_like(ids, wrong))
    with pytest.raises(InputError, match="65 tokens are given, and max_position_embeddings is 64"):
        wrapped(tokens(1, 65))
    with pytest.raises(InputError, match="neither of input_ids and inputs_embeds"):
        wrapped()
    with pytest.raises(InputError, match="both of input_ids and inputs_embeds"):
        wrapped(ids, inputs_embeds=wrapped.model.embedding(ids))
    with pytest.raises(InputError, match="attention weights are never formed here"):
        wrapped(ids, output_attentions=True)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("size", [50, 30])
def test_the_vocabulary_can_be_resized(size: int, tied: bool) -> None:
    wrapped = model(tied=tied)
    ids = tokens() % 29 + 1
    with torch.no_grad():
        before = wrapped(ids).logits
    embedding = wrapped.resize_token_embeddings(size)
    assert embedding.weight.shape == (size, 32) == wrapped.model.embedding.weight.shape
    assert wrapped.config.vocab_size == wrapped.model.config.vocab_size == size
    assert (wrapped.model.head is None) == tied
    least = min(size, 40)
    torch.testing.assert_close(wrapped(ids).logits[..., :least], before[..., :least])
    assert wrapped.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3).shape[1] > 9
    assert AttnResForCausalLM(wrapped.config).model.embedding.num_embeddings == size
    wrapped(torch.full_like(ids, size - 1), labels=ids).loss.backward()


def test_a_compiled_forward_is_the_same() -> None:
    wrapped, ids = model(), tokens()
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    expected = wrapped(ids, attention_mask=mask, use_cache=False).logits
    compiled = torch.compile(wrapped, fullgraph=True, backend="aot_eager")  # the whole graph, without a C++ compiler
    torch.testing.assert_close(compiled(ids, attention_mask=mask, use_cache=False).logits, expected)
