"""The setup of a run (`plan`): agent, model, tools, prompt, environment, delegates; and its input (`input`)."""
