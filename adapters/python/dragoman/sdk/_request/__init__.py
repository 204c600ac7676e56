"""From a request to what one attempt needs: settings, session, prompt, environment."""
