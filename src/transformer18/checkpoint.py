import dataclasses
import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from transformer18.vocabulary import write_atomically


# ---
def own_tensors(model: nn.Module) -> dict:
    """The weights of a model by name, each tensor once.

    A shared table has several names; the first one stands for it.
    """
    return {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in model.named_parameters()
    }


# ---
def save_checkpoint(model, path: str | Path, **notes) -> None:
    """Write a model into one safetensors file, all of it or nothing.

    The file holds the weights and, as JSON, the configuration and any
    notes (metrics, seed …) that JSON can hold. An older file at this
    path is only replaced once the new one is whole.
    """
    config = dataclasses.asdict(model.config)
    metadata = {"config": json.dumps(config), "notes": json.dumps(notes)}
    write_atomically(path, save(own_tensors(model), metadata))


# ---
def read_checkpoint(path: str | Path) -> tuple[dict, dict, dict]:
    """(weights, configuration, notes) of a checkpoint file.

    No code in the file is run. Raises FileNotFoundError, or ValueError
    for a file that is cut off or was not written by `save_checkpoint`.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"no checkpoint {path}: train a model first, or give its path"
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            weights = {key: file.get_tensor(key) for key in file.keys()}
        config = json.loads(metadata["config"])
        notes = json.loads(metadata["notes"])
    except SafetensorError as error:
        raise ValueError(
            f"{path} is cut off or no safetensors file ({error}): "
            "restore it or train again"
        ) from None
    except (KeyError, json.JSONDecodeError):
        raise ValueError(
            f"{path} holds no configuration, so it was not written by "
            "this package: give a checkpoint that was"
        ) from None
    return weights, config, notes


# ---
def load_weights(model: nn.Module, path: str | Path) -> dict:
    """Put the weights of a checkpoint into a model; return its notes.

    Raises ValueError, naming the fields, for a model of another
    configuration, and what `read_checkpoint` raises.
    """
    weights, config, notes = read_checkpoint(path)
    own = dataclasses.asdict(model.config)
    differ = [k for k in own if own[k] != config.get(k, "missing")]
    if differ:
        told = ", ".join(
            f"{k} {config.get(k, 'missing')} against {own[k]}"
            for k in differ
        )
        raise ValueError(
            f"{path} is of another configuration (file against model): "
            f"{told}"
        )
    missing, unexpected = model.load_state_dict(weights, strict=False)
    missing = [name for name in missing if name in own_tensors(model)]
    if missing or unexpected:
        raise ValueError(
            f"{path} does not fit the model: missing {missing}, "
            f"unexpected {unexpected}"
        )
    return notes
