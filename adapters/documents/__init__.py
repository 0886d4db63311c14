"""Documents as Markdown, a file for each kind; converted in processes without rights (`local`, `job`)."""
