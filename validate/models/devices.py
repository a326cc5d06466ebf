"""Names of devices, resolved with an error that says what is missing."""

from __future__ import annotations

import torch

__all__ = ["resolve_device"]


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """Device of a name.

    Parameters
    ----------
    device : str or torch.device
        "auto" (CUDA where present, else CPU), "cpu", "cuda" or "cuda:N".

    Returns
    -------
    torch.device

    Raises
    ------
    ValueError
        The name is unknown.
    RuntimeError
        CUDA is asked for but this torch sees no such device.
    """
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError:
        raise ValueError(f"unknown device {str(device)!r}; choose auto, cpu, cuda or cuda:N") from None
    if resolved.type not in ("cpu", "cuda"):
        raise ValueError(f"device {str(device)!r} is not supported; choose auto, cpu, cuda or cuda:N")
    if resolved.type == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError(
                f"device {str(device)!r} was asked for, but torch {torch.__version__} sees no CUDA device; "
                "use device='cpu' or 'auto', or install a CUDA build of torch"
            )
        if resolved.index is not None and resolved.index >= torch.cuda.device_count():
            raise RuntimeError(
                f"device {str(device)!r} was asked for, but there are {torch.cuda.device_count()} CUDA devices"
            )
    return resolved
