"""A stand-in of ``comfy_api.latest.io``."""

from abc import ABC, abstractmethod

from calls import recorded


class _Declared:
    """Keeps what it was given, by name."""

    def _keep(self, given):
        given.pop("self")
        vars(self).update(given)


class Combo:
    io_type = "COMBO"

    class Input(_Declared):
        @recorded
        def __init__(
            self,
            id,
            options=None,
            display_name=None,
            optional=False,
            tooltip=None,
            lazy=None,
            default=None,
            control_after_generate=None,
            upload=None,
            image_folder=None,
            remote=None,
            socketless=None,
        ):
            self._keep(locals())


class Float:
    io_type = "FLOAT"

    class Input(_Declared):
        @recorded
        def __init__(
            self,
            id,
            display_name=None,
            optional=False,
            tooltip=None,
            lazy=None,
            default=None,
            min=None,
            max=None,
            step=None,
            round=None,
            display_mode=None,
            socketless=None,
            force_input=None,
        ):
            self._keep(locals())


class Boolean:
    io_type = "BOOLEAN"

    class Input(_Declared):
        @recorded
        def __init__(
            self,
            id,
            display_name=None,
            optional=False,
            tooltip=None,
            lazy=None,
            default=None,
            label_on=None,
            label_off=None,
            socketless=None,
            force_input=None,
        ):
            self._keep(locals())


class String:
    io_type = "STRING"

    class Input(_Declared):
        @recorded
        def __init__(
            self,
            id,
            display_name=None,
            optional=False,
            tooltip=None,
            lazy=None,
            multiline=None,
            placeholder=None,
            default=None,
            dynamic_prompts=None,
            socketless=None,
            force_input=None,
        ):
            self._keep(locals())


class Model:
    io_type = "MODEL"

    class Input(_Declared):
        @recorded
        def __init__(self, id, display_name=None, optional=False, tooltip=None, lazy=None, extra_dict=None):
            self._keep(locals())

    class Output(_Declared):
        @recorded
        def __init__(self, id=None, display_name=None, tooltip=None, is_output_list=False):
            self._keep(locals())


@recorded
def Custom(io_type):  # noqa: N802
    return type(io_type, (Model,), {"io_type": io_type})


class Schema(_Declared):
    @recorded
    def __init__(
        self,
        node_id,
        display_name=None,
        category=None,
        inputs=None,
        outputs=None,
        hidden=None,
        description=None,
        is_input_list=None,
        is_output_node=None,
        is_deprecated=None,
        is_experimental=None,
        is_api_node=None,
        not_idempotent=None,
        enable_expand=None,
    ):
        self._keep(locals())


class NodeOutput:
    @recorded
    def __init__(self, *args, ui=None, expand=None, block_execution=None):
        self.args = args


class ComfyNode(ABC):
    @classmethod
    @abstractmethod
    def define_schema(cls): ...

    @classmethod
    @abstractmethod
    def execute(cls, **kwargs): ...

    @classmethod
    def fingerprint_inputs(cls, **kwargs):
        raise NotImplementedError
