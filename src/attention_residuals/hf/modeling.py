"""Our decoder as `transformers` models: wrappers around the same modules, and no second implementation."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from attention_residuals.errors import InputError
from attention_residuals.hf.configuration import AttnResConfig, BackboneModelConfig
from attention_residuals.hf.contexts import make_context
from attention_residuals.hf.hybrid_configuration import AttnResHybridConfig
from attention_residuals.hf.inputs import require_length, require_tokens
from attention_residuals.hf.loading import load_checked
from attention_residuals.hf.stub import write_stub
from attention_residuals.models import (
    SUBLAYERS_PER_LAYER,
    Backbone,
    Decoder,
    HybridConfig,
    init_decoder,
    init_weights,
    keep_steps,
    recompute_steps,
)
from attention_residuals.nn import Context, HeadLinear
from attention_residuals.train.manifests import MANIFEST


class _Run(NamedTuple):
    """What a forward through depth gave: `x [B, T, D]` for the final norm, mixtures read by the layers, the cache."""

    x: Tensor
    mixtures: tuple[Tensor, ...]
    cache: Cache | None


class AttnResPreTrainedModel(PreTrainedModel):
    """What both models share: `model` is a module of ours, whose names stand behind `model.` in every checkpoint."""

    config_class = BackboneModelConfig
    config: BackboneModelConfig
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    gradient_checkpointing = False
    _supports_sdpa = True
    _no_split_modules = ["Backbone", "Decoder"]  # noqa: RUF012 - the name is theirs
    model: Backbone

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *arguments: Any, verify: bool = True, **options: Any):
        """As in `transformers`, from safetensors alone; a local folder is checked before it is believed.

        If the weights have no depth queries and depth norms at all, these are zero and one: a standard network becomes
        one with depth attention. Anything else that is missing or left over is refused.

        Args:
            pretrained_model_name_or_path, arguments, options: see there.
            verify: compare weight files with the `manifest.json` beside them, if there is one, and look for NaN.

        Raises:
            InputError: weights that are damaged, not finite, of another model, or in a format that can run code.
        """
        load = super().from_pretrained
        return load_checked(load, pretrained_model_name_or_path, *arguments, verify=verify, **options)

    def save_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride] - the other options are passed on
        self, save_directory: Any, is_main_process: bool = True, **options: Any
    ) -> None:
        """As in `transformers`; a manifest of earlier weights goes, and the stub for `trust_remote_code` comes."""
        if is_main_process:
            (Path(save_directory) / MANIFEST).unlink(missing_ok=True)
            write_stub(Path(save_directory), self.config)
        super().save_pretrained(save_directory, is_main_process=is_main_process, **options)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Nothing: `save_pretrained` writes the stub that leads back here, and never a copy of this code."""

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Fill what was not loaded, by role and name, from torch's seed: after `torch.manual_seed(s)` a new model is
        `build_decoder(config, seed=s)`."""
        missing = {
            name for name, value in self.model.named_parameters() if not getattr(value, "_is_hf_initialized", False)
        }
        init_decoder(self.model, seed=torch.initial_seed(), only=missing)

    def _init_weights(self, module: nn.Module) -> None:
        """A module that comes later: a larger embedding, a larger head."""
        init_weights(module, seed=torch.initial_seed())

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable[..., Any] = checkpoint,
        every_n_layers: int = 1,
    ) -> None:
        """Steps are the unit, whose state is an argument; never reentrant, whatever was asked for."""
        self.gradient_checkpointing = enable
        if enable:
            recompute_steps(
                self.model, lambda i: i // SUBLAYERS_PER_LAYER % every_n_layers == 0, gradient_checkpointing_func
            )
        else:
            keep_steps(self.model)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Embedding)
        self.model.embedding = value

    def resize_token_embeddings(self, *arguments: Any, **options: Any) -> nn.Embedding:
        """As in `transformers`."""
        embedding = super().resize_token_embeddings(*arguments, **options)
        self.model.config = replace(self.model.config, vocab_size=embedding.num_embeddings)
        return embedding

    def _run(
        self,
        input_ids: Tensor | None,
        attention_mask: Any,
        position_ids: Tensor | None,
        cache: Cache | None,
        inputs_embeds: Tensor | None,
        use_cache: bool | None,
        output_hidden_states: bool | None,
        output_attentions: bool | None,
    ) -> _Run:
        """Embed, and go through depth."""
        if self.config.output_attentions if output_attentions is None else output_attentions:
            raise InputError("output_attentions is true, and attention weights are never formed here; leave it out")
        embedding = self._embed(input_ids, inputs_embeds)
        require_length(embedding.shape[1], self.config.max_position_embeddings)
        recomputing = self.gradient_checkpointing and torch.is_grad_enabled()  # which a cache would suspend
        if cache is None and not recomputing and (self.config.use_cache if use_cache is None else use_cache):
            cache = DynamicCache(config=self.config)
        context = make_context(self.model, self.config, embedding, attention_mask, position_ids, cache)
        if self.config.output_hidden_states if output_hidden_states is None else output_hidden_states:
            return _Run(*_mix_with_mixtures(self.model, embedding, context), cache)
        return _Run(self.model.mix(embedding, context), (), cache)

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Float[Tensor, "batch time width"]:
        if inputs_embeds is not None and input_ids is None:
            return inputs_embeds
        if input_ids is not None and inputs_embeds is None:
            require_tokens(input_ids, self.model.config.vocab_size)
            return self.model.embedding(input_ids)
        given = "neither" if input_ids is None else "both"
        raise InputError(f"{given} of input_ids and inputs_embeds are given; give one of them")


def _mix_with_mixtures(model: Backbone, embedding: Tensor, context: Context) -> tuple[Tensor, tuple[Tensor, ...]]:
    """`Backbone.mix`, and what the first sublayer of each layer reads before its norm."""
    state, mixtures = model.stream.start(embedding), []
    for i in range(model.config.sublayers):
        if i % SUBLAYERS_PER_LAYER == 0:
            mixtures.append(model.stream.mixture(state, i))
        state = model.step(state, i, context)
    return model.stream.finish(state), tuple(mixtures)


class AttnResModel(AttnResPreTrainedModel):
    """`Backbone`: tokens `[B, T]` to normed features `[B, T, D]`."""

    config_class = AttnResConfig
    _keys_to_ignore_on_load_unexpected = [r"^model\.head\.weight$"]  # noqa: RUF012

    def __init__(self, config: BackboneModelConfig):
        super().__init__(config)
        self.model = Backbone(config.to_decoder_config())
        self.post_init()

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPast:
        """Features after the final norm; arguments and `hidden_states` as in `AttnResForCausalLM`.

        Raises:
            InputError: as there.
        """
        run = self._run(
            input_ids,
            attention_mask,
            position_ids,
            cache,
            inputs_embeds,
            use_cache,
            output_hidden_states,
            output_attentions,
        )
        features = self.model.norm(run.x)
        hidden = (*run.mixtures, features) if run.mixtures else None
        return BaseModelOutputWithPast(last_hidden_state=features, cache=run.cache, hidden_states=hidden)


class AttnResForCausalLM(AttnResPreTrainedModel, GenerationMixin):
    """`Decoder`: tokens `[B, T]` to logits `[B, T, vocab]`, to the bit those of the decoder it wraps."""

    config_class = AttnResConfig

    def __init__(self, config: BackboneModelConfig):
        super().__init__(config)
        self.model: Decoder = Decoder(config.to_decoder_config())  # pyright: ignore[reportIncompatibleVariableOverride]
        self.post_init()

    @classmethod
    def from_decoder(cls, model: Decoder, **fields: Any) -> "AttnResForCausalLM":
        """The decoder itself under these interfaces, not a copy; `fields` join its config, token ids for instance.

        Raises:
            InputError: a model of another kind of layers than those of this class.
        """
        config_class: Any = cls.config_class
        kind = config_class.decoder_kind
        if not isinstance(model.config, kind):
            raise InputError(
                f"the model is of a {type(model.config).__name__}, and {cls.__name__} wraps one of a {kind.__name__}; "
                "attention_residuals.hf.wrap_decoder finds the class"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of blocks that do not come out even: told when the decoder was built
            wrapped = cls(config_class.from_decoder_config(model.config, **fields))
        wrapped.model = model
        return wrapped.train(model.training)

    def get_output_embeddings(self) -> nn.Module | None:
        return self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        assert isinstance(new_embeddings, nn.Linear)
        head = new_embeddings
        if not isinstance(head, HeadLinear):  # a larger head comes as a plain matrix, and would lose its role
            head = HeadLinear(head.in_features, head.out_features, bias=False, device="meta")
            head.weight = new_embeddings.weight
        self.model.head = head

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Logits, and with labels the loss.

        Args:
            input_ids: `[B, T]`; or `inputs_embeds [B, T, D]`.
            attention_mask: `[B, past + T]`, 0 for padding, on either side; or `[B, 1, T, keys]`, true where a token may
                look.
            position_ids: `[B or 1, T]`; None: counted from the first token that is no padding.
            cache: any cache of `transformers`. Nothing of the depth is ever in it.
            labels: `[B, T]`, -100 where there is no loss; the model shifts them.
            output_hidden_states: also give a tuple of layers + 1 tensors `[B, T, D]`: entry `k` is the mixture that the
                first sublayer of layer `k` reads before its norm (entry 0: the embedding), the last is what the head
                sees, after the final norm.
            logits_to_keep: logits of so many last tokens, or of these; 0: of all.
            options: `num_items_in_batch`, and what else the loss takes.

        Raises:
            InputError: a token outside the vocabulary (looked for on the CPU alone), more tokens than
                `max_position_embeddings`, attention weights asked for, tokens and embeddings both or neither.
        """
        run = self._run(
            input_ids,
            attention_mask,
            position_ids,
            cache,
            inputs_embeds,
            use_cache,
            output_hidden_states,
            output_attentions,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.model.logits(run.x[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **options)
        hidden = (*run.mixtures, self.model.norm(run.x)) if run.mixtures else None
        return CausalLMOutputWithPast(loss=loss, logits=logits, cache=run.cache, hidden_states=hidden)


class AttnResHybridModel(AttnResModel):
    """`AttnResModel` of layers that differ. Texts in a row in one sequence are one text to a recurrent layer."""

    config_class = AttnResHybridConfig


class AttnResHybridForCausalLM(AttnResForCausalLM):
    """`AttnResForCausalLM` of layers that differ, Kimi Linear for one.

    A cache of `transformers` must be made with `config=model.config`, so that recurrent layers find their room in it.
    Texts in a row in one sequence are one text to such a layer, and masks of four dimensions are refused.
    """

    config_class = AttnResHybridConfig


def wrap_decoder(model: Decoder, **fields: Any) -> AttnResForCausalLM:
    """A decoder of any layers under these interfaces; see `AttnResForCausalLM.from_decoder`."""
    kind = AttnResHybridForCausalLM if isinstance(model.config, HybridConfig) else AttnResForCausalLM
    return kind.from_decoder(model, **fields)
