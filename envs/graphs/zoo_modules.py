"""The modules of the zoo, built from `transformers` configurations, with their data and loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from envs.graphs.capture import OptimizerFactory, capture_training_step
from envs.graphs.mixture_of_experts import MixtureOfExperts, MixtureOfExpertsConfig
from envs.graphs.op_graph import OpGraph
from envs.graphs.zoo import ZooModel

PIXELS = 224
CLASSES = 1000


@dataclass(frozen=True)
class Workload:
    """What `capture_training_step` needs of a model."""

    module: Callable[[], nn.Module]
    inputs: Callable[[], Mapping[str, Tensor]]
    loss: Callable[[Any], Tensor]


OPTIMIZERS: Mapping[str, OptimizerFactory] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "sgd": partial(torch.optim.SGD, lr=0.1),
}


def capture(model: ZooModel) -> OpGraph:
    """Trace the training step of `model`."""
    workload = WORKLOADS[model.name](model)
    dtype: torch.dtype = getattr(torch, model.dtype)
    return capture_training_step(
        lambda: workload.module().to(dtype),
        workload.inputs,
        workload.loss,
        name=model.name,
        micro_batches=model.micro_batches,
        optimizer=OPTIMIZERS[model.optimizer],
    )


def model_loss(output: Any) -> Tensor:
    """The loss that a model with a head computes from its labels."""
    loss: Tensor = output.loss
    return loss


def mean_square(output: Any) -> Tensor:
    """The loss of a bare model: the mean square of its last hidden state."""
    hidden: Tensor = output.last_hidden_state
    return hidden.float().square().mean()


def _workload(
    model: ZooModel,
    config: Any,
    classes: Mapping[str, Callable[[Any], nn.Module]],
    data: Mapping[str, Callable[[ZooModel], Tensor]],
    labels: Callable[[ZooModel], Tensor],
) -> Workload:
    """A library model: its class by head, its data, and labels where there is a head."""
    bare = model.head == "none"
    tensors = data if bare else {**data, "labels": labels}
    return Workload(
        module=lambda: classes[model.head](config),
        inputs=lambda: {name: make(model) for name, make in tensors.items()},
        loss=mean_square if bare else model_loss,
    )


def _tokens(model: ZooModel) -> Tensor:
    return torch.zeros((model.samples, model.sequence or 1), dtype=torch.int64)


def _pixels(model: ZooModel) -> Tensor:
    return torch.zeros((model.samples, 3, PIXELS, PIXELS), dtype=getattr(torch, model.dtype))


def _class_labels(model: ZooModel) -> Tensor:
    return torch.zeros((model.samples,), dtype=torch.int64)


def _bert(model: ZooModel, *, layers: int, hidden: int, heads: int) -> Workload:
    config = transformers.BertConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        attn_implementation="eager",
    )
    classes = {
        "masked_lm": transformers.BertForMaskedLM,
        "none": partial(transformers.BertModel, add_pooling_layer=False),
    }
    return _workload(model, config, classes, {"input_ids": _tokens}, _tokens)


def _gpt2(model: ZooModel, *, layers: int, hidden: int, heads: int) -> Workload:
    config = transformers.GPT2Config(
        n_layer=layers,
        n_embd=hidden,
        n_head=heads,
        use_cache=False,
        attn_implementation="eager",
    )
    classes = {"causal_lm": _gpt2_language_model, "none": transformers.GPT2Model}
    return _workload(model, config, classes, {"input_ids": _tokens}, _tokens)


def _gpt2_language_model(config: Any) -> nn.Module:
    model: Any = transformers.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # the library cannot tell it from the class's name
    module: nn.Module = model
    return module


def _llama_7b(model: ZooModel) -> Workload:
    # the defaults of the configuration are the 7-billion-parameter model
    config = transformers.LlamaConfig(use_cache=False, attn_implementation="eager")
    classes = {"causal_lm": transformers.LlamaForCausalLM, "none": transformers.LlamaModel}
    return _workload(model, config, classes, {"input_ids": _tokens}, _tokens)


def _t5_small(model: ZooModel) -> Workload:
    # the defaults of the configuration are T5-small; source and target are equally long
    config = transformers.T5Config(
        vocab_size=32_128, use_cache=False, decoder_start_token_id=0, attn_implementation="eager"
    )
    classes = {
        "seq2seq_lm": transformers.T5ForConditionalGeneration,
        "none": transformers.T5Model,
    }
    data = {"input_ids": _tokens}
    if model.head == "none":
        data["decoder_input_ids"] = _tokens
    return _workload(model, config, classes, data, _tokens)


def _resnet50(model: ZooModel) -> Workload:
    # the defaults of the configuration are ResNet-50
    config = transformers.ResNetConfig(num_labels=CLASSES)
    classes = {
        "classification": transformers.ResNetForImageClassification,
        "none": transformers.ResNetModel,
    }
    return _workload(model, config, classes, {"pixel_values": _pixels}, _class_labels)


def _vit_base(model: ZooModel) -> Workload:
    config = transformers.ViTConfig(
        image_size=PIXELS, num_labels=CLASSES, attn_implementation="eager"
    )
    classes = {
        "classification": transformers.ViTForImageClassification,
        "none": partial(transformers.ViTModel, add_pooling_layer=False),
    }
    return _workload(model, config, classes, {"pixel_values": _pixels}, _class_labels)


def _moe(model: ZooModel) -> Workload:
    return Workload(
        module=lambda: MixtureOfExperts(MixtureOfExpertsConfig()),
        inputs=lambda: {"input_ids": _tokens(model), "labels": _tokens(model)},
        loss=model_loss,
    )


WORKLOADS: Mapping[str, Callable[[ZooModel], Workload]] = {
    "resnet50": _resnet50,
    "vit_base": _vit_base,
    "bert_base": partial(_bert, layers=12, hidden=768, heads=12),
    "bert_large": partial(_bert, layers=24, hidden=1024, heads=16),
    "gpt2": partial(_gpt2, layers=12, hidden=768, heads=12),
    "gpt2_medium": partial(_gpt2, layers=24, hidden=1024, heads=16),
    "gpt2_large": partial(_gpt2, layers=36, hidden=1280, heads=20),
    "gpt2_xl": partial(_gpt2, layers=48, hidden=1600, heads=25),
    "t5_small": _t5_small,
    "llama_7b": _llama_7b,
    "moe": _moe,
}
