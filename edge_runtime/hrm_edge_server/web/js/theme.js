// Light, dark, or as the system has it; the choice is kept in this browser.

import { $ } from "./dom.js";

const KEY = "hrm-edge-theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };

export function startTheme() {
  let theme = kept();
  const apply = () => {
    document.documentElement.dataset.theme = theme;
    $("theme").textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
    $("theme").setAttribute("aria-label", `Colors: ${theme}`);
    $("theme").title = `Colors: ${theme}`;
  };
  $("theme").onclick = () => {
    theme = NEXT[theme];
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // a browser that keeps nothing asks its system again next time
    }
    apply();
  };
  apply();
}

function kept() {
  try {
    const theme = localStorage.getItem(KEY);
    return theme in NEXT ? theme : "auto";
  } catch {
    return "auto";
  }
}
