import type { h } from "preact";

export { Component, Fragment, createContext, h, options, render } from "preact";
export { useCallback, useContext, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect } from "@preact/signals";
export type { ReadonlySignal, Signal } from "@preact/signals";
export declare const html: (strings: TemplateStringsArray, ...values: any[]) => ReturnType<typeof h>;
