"""Kernels of the table as CuPy compiles and launches them on one GPU."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hpcsgd import assets
from hpcsgd.backends.kernel_table import FOLDER, Build, compiled_for, options
from hpcsgd.backends.launch_steps import PLAIN_SHARED
from hpcsgd.backends.thread_locale import kept_locale
from hpcsgd.errors import ConfigError

OnStream = Callable[..., None]
# What CuPy tells NVRTC besides the architecture.
OF_CUPY = ("-ftz=true", "--device-as-default-execution-space")


class RawKernels:
    """Each is compiled when it is first asked for, by CuPy, which keeps it on disk."""

    def __init__(self, cupy: Any, arch: str) -> None:
        self.cupy, self.arch = cupy, arch
        self._known: dict[Build, OnStream] = {}

    def get(self, build: Build) -> OnStream:
        """launch(stream, grid, block, arguments, shared=0, cluster=1)."""
        if build not in self._known:
            self._known[build] = self._launcher(build)
        return self._known[build]

    def _launcher(self, build: Build) -> OnStream:
        function = self._function(build)

        def launch(
            stream: Any,
            grid: Any,
            block: int,
            arguments: Any,
            shared: int = 0,
            cluster: int = 1,
        ) -> None:
            if (
                shared > PLAIN_SHARED
                and function.max_dynamic_shared_size_bytes < shared
            ):
                function.max_dynamic_shared_size_bytes = shared
            given = tuple(np.uint64(0) if a is None else a for a in arguments)
            with stream:
                function(_three(grid), (block, 1, 1), given, shared_mem=shared)

        return launch

    def _function(self, build: Build) -> Any:
        folder = assets.path(f"kernels/{FOLDER}")
        text = ascii_of(folder / f"{build.source}.cu")
        given = (*options(build, str(folder)), _headers(folder))
        try:
            with kept_locale():
                if compiled_for(build, self.arch) != self.arch:
                    return self._of_one_arch(build, text, given)
                module = self.cupy.RawModule(code=text, options=given)
                return module.get_function(build.entry)
        except self.cupy.cuda.compiler.CompileException as error:
            raise self._uncompiled(build, error) from error
        except OSError as error:
            raise no_folder(error) from error
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # of CUDA
                raise
            raise ConfigError(  # of CuPy, where CUDA's headers are not found
                f"CuPy cannot compile kernel {build.entry} here ({error}); install"
                ' CUDA beside it: pip install "cupy-cudaNNx[ctk]" of its version'
            ) from error

    def _of_one_arch(self, build: Build, text: str, given: tuple[str, ...]) -> Any:
        """Past CuPy, which knows of a GPU's "90" and not of its "90a"."""
        nvrtc = self.cupy.cuda.nvrtc
        arch = f"-arch=sm_{compiled_for(build, self.arch)}"
        program = nvrtc.createProgram(text, f"{build.source}.cu", (), ())
        try:
            nvrtc.compileProgram(program, (*given, *OF_CUPY, arch))
            cubin = nvrtc.getCUBIN(program)
        except nvrtc.NVRTCError as error:
            raise self._uncompiled(build, nvrtc.getProgramLog(program)) from error
        finally:
            nvrtc.destroyProgram(program)
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"{build.source}.cubin"
            path.write_bytes(cubin)
            function = self.cupy.RawModule(path=str(path)).get_function(build.entry)
            _ = function.max_dynamic_shared_size_bytes  # read from the file by now
        return function

    def _uncompiled(self, build: Build, error: Exception | str) -> ConfigError:
        (first, *_) = [*str(error).strip().splitlines(), ""]
        return ConfigError(
            f"NVRTC cannot compile the kernel {build.entry} for sm_{self.arch}"
            f" ({first}); install the newest CuPy and NVRTC that the driver takes, or"
            " use --device cpu"
        )


def no_folder(error: OSError) -> ConfigError:
    """Where CuPy would keep what it compiles."""
    return ConfigError(
        f"CuPy cannot keep compiled kernels ({error}); set CUPY_CACHE_DIR to a folder"
        " that can be written, on a disk with room"
    )


def ascii_of(path: Path) -> str:
    """Signs of comments become `?`: CuPy writes the text in the user's encoding."""
    return path.read_text("utf-8").encode("ascii", "replace").decode()


def _headers(folder: Path) -> str:
    """What CuPy keeps of a kernel is known by its text and options, not by these."""
    texts = [path.read_bytes() for path in sorted(folder.glob("*.cuh"))]
    return f"-DHEADERS=0x{sha256(b''.join(texts)).hexdigest()[:8]}"


def _three(size: Any) -> tuple[int, int, int]:
    parts = (size,) if isinstance(size, int) else tuple(size)
    x, y, z = (*parts, 1, 1)[:3]
    return int(x), int(y), int(z)
