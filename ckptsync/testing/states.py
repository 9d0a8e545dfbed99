"""State files as the trainers write them with `torch.save`: random generators and a learning rate's schedule.

Facts: verl 0.9.1 puts `get_rng_state()` (cpu, numpy, random, the device) and `lr_scheduler.state_dict()` of a LambdaLR
into `extra_state_*`; Hugging Face's trainer the generators (python, numpy, cpu, cuda) into `rng_state*.pth`, and the
schedule into `scheduler.pt`. The pickles are those of torch 2.13 and numpy 2, written without them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping

from ckptsync.testing.fileshapes import pickled_dict, pickled_int, pickled_tensor, pickled_text, torch_archive

__all__ = ["generators_file", "schedule_file", "verl_extra_state"]

_CPU_BYTES, _CUDA_BYTES = 5056, 16
_WORDS = 624


def verl_extra_state(stem: str, noise: bytes, step: int) -> bytes:
    """The `extra_state_*` of one rank of verl's FSDP engine."""
    rng = _generators(noise, "random")
    content = {"lr_scheduler": _schedule(step), "rng": pickled_dict(rng)}
    return torch_archive(stem, pickled_dict(content), _storages(noise))


def generators_file(stem: str, noise: bytes) -> bytes:
    """Hugging Face's `rng_state*.pth` of one rank."""
    return torch_archive(stem, pickled_dict(_generators(noise, "python")), _storages(noise))


def schedule_file(stem: str, step: int) -> bytes:
    """`scheduler.pt`."""
    return torch_archive(stem, _schedule(step), ())


def _generators(noise: bytes, python: str) -> Mapping[str, bytes]:
    return {
        "cpu": pickled_tensor("ByteStorage", "0", _CPU_BYTES),
        "numpy": _numpy_state(noise),
        python: _python_state(noise),
        "cuda": pickled_tensor("ByteStorage", "1", _CUDA_BYTES),
    }


def _storages(noise: bytes) -> tuple[bytes, bytes]:
    """`torch.get_rng_state()` of the processor: seed, words left, whether seeded, the next word, 624 words, normals."""
    many = random.Random(noise)  # noqa: S311 - reproducible, no secret
    words = struct.pack(f"<{_WORDS}Q", *(many.getrandbits(32) for _ in range(_WORDS)))
    cpu = struct.pack("<QiiQ", many.getrandbits(32), 1, 1, 0) + words
    return cpu.ljust(_CPU_BYTES, b"\0"), many.randbytes(_CUDA_BYTES)


def _schedule(step: int) -> bytes:
    """`LambdaLR.state_dict()` after `step` steps."""
    rates = b"](" + _float(1e-6) + b"e"
    return pickled_dict(
        {
            "base_lrs": rates,
            "last_epoch": pickled_int(step),
            "_step_count": pickled_int(step + 1),
            "_get_lr_called_within_step": b"\x89",
            "_last_lr": rates,
            "lr_lambdas": b"](Ne",
        }
    )


def _python_state(noise: bytes) -> bytes:
    """`random.getstate()`: (3, 625 words, None)."""
    version, words, gauss = random.Random(noise).getstate()  # noqa: S311 - as above
    numbers = b"".join(b"\x8a\x05" + word.to_bytes(5, "little") for word in words)
    assert gauss is None, "nothing was drawn yet"
    return pickled_int(version) + b"(" + numbers + b"tN\x87"


def _numpy_state(noise: bytes) -> bytes:
    """`numpy.random.get_state()`: ("MT19937", 624 words, position, 0, 0.0)."""
    words = random.Random(b"numpy" + noise).randbytes(4 * _WORDS)  # noqa: S311 - as above
    array = b"cnumpy._core.multiarray\n_reconstruct\n" + b"(cnumpy\nndarray\nK\x00\x85" + _latin(b"b") + b"tR"
    kind = b"cnumpy\ndtype\n(" + pickled_text("u4") + b"\x89\x88tR"
    kind += b"(K\x03" + pickled_text("<") + b"NNN" + pickled_int(-1) + pickled_int(-1) + b"K\x00tb"
    state = b"(K\x01M\x70\x02\x85" + kind + b"\x89" + _latin(words) + b"tb"
    return b"(" + pickled_text("MT19937") + array + state + b"M\x70\x02K\x00" + _float(0.0) + b"t"


def _latin(data: bytes) -> bytes:
    """Bytes in protocol 2: encoded text."""
    return b"c_codecs\nencode\n(" + pickled_text(data.decode("latin1")) + pickled_text("latin1") + b"tR"


def _float(value: float) -> bytes:
    return b"G" + struct.pack(">d", value)
