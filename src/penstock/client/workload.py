"""The identity of a loader's workload, under which measured rates are stored."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from torch.utils.data import default_collate

from penstock.client.arguments import TorchArguments
from penstock.client.gpu_choice import adopted_of
from penstock.client.remote_side import RemoteSide
from penstock.config import LoaderConfig
from penstock.measure.environment import accelerators, processor, usable_cores
from penstock.measure.host import cpu_quota
from penstock.measure.launch import local_world
from penstock.measure.metric_store import Workload
from penstock.remote.plans import candidates
from penstock.transforms.base import plain
from penstock.worker.prepare import Recipe

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def workload_of(
    config: LoaderConfig, given: TorchArguments, remote: RemoteSide | None = None, *, model: Any = ""
) -> Workload:
    """Return the identity. `model`: a name, or a module; "" if it is not known."""
    quota = cpu_quota()
    return Workload(
        chain=chain_of(config, given),
        model=model if isinstance(model, str) else model_of(model),
        batch_size=given.samples,
        dtype=str(config.dtype or "").removeprefix("torch."),
        device=", ".join([*accelerators(), *([f"prepares: {config.gpu.mode}"] if config.device else [])]),
        processor=processor(),
        cores=min(usable_cores(), quota or usable_cores()),
        ranks=local_world(),
        workers=given.num_workers,
        remote_workers=0 if remote is None else remote.most or len(remote.addresses),
        plans=() if remote is None else plans_of(remote, config, given),
        link="" if remote is None else link_of(remote, config),
    )


def plans_of(remote: RemoteSide, config: LoaderConfig, given: TorchArguments) -> tuple[str, ...]:
    """Return the plans to choose from."""
    recipe = Recipe(
        dataset=adopted_of(config, given.dataset) or given.dataset,
        collate_fn=given.collate_fn,
        auto_collation=given.batch_sampler is not None,
        seed=0,
    )
    return candidates(recipe) if remote.plan == "auto" else (remote.plan,)


def link_of(remote: RemoteSide, config: LoaderConfig) -> str:
    """Name the way to the remote workers: the cluster, or the hosts that are known."""
    hosts = sorted({address.host for address in remote.addresses})
    where = hosts if remote.gateway is None else [remote.gateway.address]
    return ", ".join([*where, *(["TLS"] if config.remote is not None and config.remote.tls else [])])


def chain_of(config: LoaderConfig, given: TorchArguments) -> str:
    """Describe the dataset, the ops with their parameters, and what else decides a sample's cost."""
    said = [dataset_text(given.dataset)]
    if given.collate_fn is not default_collate:
        said.append(f"collated by {plain(given.collate_fn)}")
    if config.reuse is not None and config.reuse.times > 1:
        said.append(f"used {config.reuse.times} times, split {config.reuse.split}")
    return ", ".join(said)


def dataset_text(dataset: Any) -> str:
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    try:
        length = f" of {len(dataset)}"
    except Exception:  # noqa: BLE001 - the user's own code, or none
        length = ""
    chain = getattr(getattr(dataset, "chain", None), "identity", None)
    if isinstance(chain, str):
        return f"{kind}{length}, chain {chain}, {getattr(dataset, 'fast_decode', False)}"
    transform = getattr(dataset, "transform", None)
    done = "" if transform is None else f", {transform_text(transform)}"
    inner = getattr(dataset, "dataset", None)  # such as a Subset's
    return f"{kind}{length}{done}" + ("" if inner is None else f" ({dataset_text(inner)})")


def transform_text(transform: Any) -> str:
    """Return a transform's own text, the same in every process."""
    if hasattr(transform, "__qualname__"):
        return str(plain(transform))
    return f"{type(transform).__module__} {' '.join(ADDRESS.sub('', repr(transform)).split())}"


def model_of(module: Any) -> str:
    """Return a digest of a module's parameters: their names, shapes and types, not their values."""
    found = hashlib.blake2b(digest_size=12)
    for name, parameter in sorted(module.named_parameters()):
        found.update(repr((name, tuple(parameter.shape), str(parameter.dtype))).encode())
    return found.hexdigest()
