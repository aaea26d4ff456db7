/** Dark or light, as chosen in this browser or as the system says. */

const THEME = "typegate-theme";

/** Use what is chosen, or what was; returns it, empty for what the system says. */
export function theme(chosen) {
  if (chosen !== undefined) {
    if (chosen) localStorage.setItem(THEME, chosen);
    else localStorage.removeItem(THEME);
  }
  const current = localStorage.getItem(THEME) ?? "";
  if (current) document.documentElement.dataset.theme = current;
  else delete document.documentElement.dataset.theme;
  return current;
}
