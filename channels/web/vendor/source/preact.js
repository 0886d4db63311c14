// Components, hooks, signals and templates in one file: they share one Preact.
import { h } from "preact";
import htm from "htm";

export { Component, Fragment, createContext, h, options, render } from "preact";
export { useCallback, useContext, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect } from "@preact/signals";
export const html = htm.bind(h);
