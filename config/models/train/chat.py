"""The chat template, and the same in Python: how messages and tools become the texts of roles.

The template is the contract with the server: `spell` says in Python what CHAT_TEMPLATE says in
Jinja, and `vocab.check` proves that both agree. Tools, calls and results have OpenAI's shape.
Calls are written as Hermes models write them, by which the server knows the family.
"""

import json

CHAT_TEMPLATE = (
    "{{- bos_token -}}"
    # Name, parameters and description of a tool in one line, because the context is short.
    "{%- if tools -%}"
    "{%- set listing -%}"
    "{{- 'Tools:' -}}"
    "{%- for tool in tools -%}"
    "{%- set schema = tool.function.parameters or {} -%}"
    "{{- '\\n' + tool.function.name + '(' -}}"
    "{%- for name, value in (schema.properties or {}) | items -%}"
    "{{- '' if loop.first else ', ' -}}"
    "{{- name + (': ' if name in (schema.required or []) else '?: ') -}}"
    "{{- value.enum | join('|') if value.enum else value.type or 'any' -}}"
    "{%- endfor -%}"
    "{{- ')' -}}"
    "{%- if tool.function.description -%}{{- ': ' + tool.function.description | trim -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- endset -%}"
    "{%- if messages[0]['role'] not in ['system', 'developer'] -%}{{- '<|system|>' + listing + '<|end|>' -}}{%- endif -%}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'system' or message['role'] == 'developer' -%}"
    "{%- set text = (message['content'] or '') | trim -%}"
    "{%- if tools and loop.first -%}{%- set text = (text + '\\n\\n' + listing) | trim -%}{%- endif -%}"
    "{{- '<|system|>' + text + '<|end|>' -}}"
    "{%- elif message['role'] == 'assistant' -%}"
    "{{- '<|assistant|>' + (message['content'] or '') | trim -}}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{%- if (message['content'] or '') | trim or not loop.first -%}{{- '\\n' -}}{%- endif -%}"
    "{{- '<tool_call>\\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' -}}"
    "{%- if call.function.arguments is string -%}{{- call.function.arguments -}}"
    "{%- else -%}{{- call.function.arguments | tojson -}}{%- endif -%}"
    "{{- '}\\n</tool_call>' -}}"
    "{%- endfor -%}"
    "{{- '<|end|>' -}}"
    "{%- elif message['role'] == 'tool' -%}"
    "{{- '<|user|><tool_response>\\n' + (message['content'] or '') | trim + '\\n</tool_response><|end|>' -}}"
    "{%- else -%}"
    "{{- '<|user|>' + (message['content'] or '') | trim + '<|end|>' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def listing(tools):
    """The lines about tools at the end of the system message."""
    lines = ["Tools:"]
    for tool in tools:
        function = tool["function"]
        schema = function.get("parameters") or {}
        parameters = ", ".join(
            f"{name}{':' if name in schema.get('required', ()) else '?:'} "
            + ("|".join(map(str, value["enum"])) if value.get("enum") else value.get("type", "any"))
            for name, value in (schema.get("properties") or {}).items())
        description = (function.get("description") or "").strip()
        lines.append(f"{function['name']}({parameters})" + (f": {description}" if description else ""))
    return "\n".join(lines)


def call_text(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {dumps(arguments)}}}\n</tool_call>'


def spell(messages, tools=()):
    """Messages and tools as a list of (role, text), of the roles system, user and assistant."""
    spelled = []
    for at, message in enumerate(messages):
        role, text = message["role"], (message.get("content") or "").strip()
        if role == "tool":
            role, text = "user", f"<tool_response>\n{text}\n</tool_response>"
        elif role == "assistant" and message.get("tool_calls"):
            calls = [c["function"] for c in message["tool_calls"]]
            text = "\n".join(([text] if text else []) + [call_text(c["name"], c["arguments"]) for c in calls])
        if tools and at == 0 and role != "system":
            spelled.append(("system", listing(tools)))
        elif tools and at == 0:
            text = (text + "\n\n" + listing(tools)).strip()
        spelled.append((role, text))
    return spelled
