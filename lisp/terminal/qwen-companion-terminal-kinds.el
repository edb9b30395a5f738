;;; qwen-companion-terminal-kinds.el --- The kinds of terminals for CLIs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The table of the terminal emulators of Emacs: term, and the packages vterm,
;; Eat and Ghostel, which are required when a CLI is started in them.
;;
;; A terminal program of the desktop has a template of its command.  A buffer
;; represents it in Emacs while the program runs.  Reviews work as in a
;; terminal of Emacs, and prompts go to the file from which the CLI reads them.
;; Commands that type into the terminal do not work there.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-programs)
(require 'qwen-companion-roots)

(declare-function eat-exec "ext:eat" (buffer name command startfile switches))
(declare-function eat-mode "ext:eat" ())
(declare-function eat-term-send-string "ext:eat" (terminal string))
(declare-function eat-term-send-string-as-yank "ext:eat" (terminal args))
(declare-function ghostel-exec "ext:ghostel" (buffer program &optional args identity))
(declare-function ghostel-mode "ext:ghostel" ())
(declare-function ghostel-paste-string "ext:ghostel" (string))
(declare-function ghostel-send-string "ext:ghostel" (string))
(declare-function term-char-mode "term" ())
(declare-function term-exec "term" (buffer name command startfile switches))
(declare-function term-mode "term" ())
(declare-function vterm-mode "ext:vterm" ())
(declare-function vterm-send-return "ext:vterm" ())
(declare-function vterm-send-string "ext:vterm" (string &optional paste-p))
(defvar eat-terminal)
(defvar ghostel-buffer-name-function)
(defvar ghostel-use-native-pty)
(defvar vterm-kill-buffer-on-exit)
(defvar vterm-min-window-width)
(defvar vterm-shell)
(defvar vterm-tramp-shells)

(defcustom qwen-companion-terminal-side nil
  "Side of the frame at which terminals of CLIs are shown, in a side window.
With nil they are shown where `display-buffer' puts them."
  :group 'qwen-companion
  :type '(choice (const :tag "In any window" nil)
                 (const left) (const right) (const top) (const bottom)))

(defcustom qwen-companion-terminal-external-command '("xterm" "-e" "%c")
  "The program and arguments that open a terminal of the desktop.
The element \"%c\" stands for the program and arguments of the CLI, and %d
in any element for the directory, in which it is also started.  Prompts
can be sent to the CLI if the program runs as long as its terminal."
  :group 'qwen-companion
  :type '(repeat :tag "Program and arguments" string))

(defconst qwen-companion-terminal-kinds--emulators
  `((vterm vterm-mode
           ,#'qwen-companion-terminal-kinds--run-in-vterm
           ,(lambda (text) (vterm-send-string text t))
           ,(lambda () (vterm-send-return)))
    (eat eat-mode
         ,(lambda (buffer command)
            (eat-mode)
            (eat-exec buffer (buffer-name buffer) (car command) nil (cdr command)))
         ,(lambda (text) (eat-term-send-string-as-yank eat-terminal (list text)))
         ,(lambda () (eat-term-send-string eat-terminal "\r")))
    (ghostel ghostel-mode
             ,#'qwen-companion-terminal-kinds--run-in-ghostel
             ,(lambda (text) (ghostel-paste-string text))
             ,(lambda () (ghostel-send-string "\r")))
    (term term-mode
          ,(lambda (buffer command)
             (term-mode)
             (term-exec buffer (buffer-name buffer) (car command) nil (cdr command))
             (term-char-mode))))
  "Terminal emulators of Emacs: (KIND MODE START PASTE RETURN).
KIND is also the symbol of the library.  START is called with the buffer
and the command, in that buffer.  PASTE is called with a text, RETURN
without arguments, in a buffer in MODE.  Without these two, bytes are sent
to the process.")

(dolist (emulator qwen-companion-terminal-kinds--emulators)
  (cl-pushnew (cadr emulator) qwen-companion-roots-terminal-modes))

(defcustom qwen-companion-terminal nil
  "Terminal emulator in which `qwen-companion-run' starts the CLI.
The symbols `vterm', `eat' and `ghostel' are packages, `term' is part of
Emacs, and `external' is a program of the desktop, see
`qwen-companion-terminal-external-command'.  With nil it is vterm if that
is installed, else term.  For another one, see
`qwen-companion-terminal-start'."
  :group 'qwen-companion
  :type `(choice (const :tag "vterm when installed, else term" nil)
                 ,@(mapcar (lambda (emulator) (list 'const (car emulator)))
                           qwen-companion-terminal-kinds--emulators)
                 (const :tag "Outside of Emacs" external)
                 (symbol :tag "Another"))
  :safe (lambda (value)
          (or (null value) (assq value qwen-companion-terminal-kinds--emulators))))

;;; Showing

(defconst qwen-companion-terminal-kinds--least-lines 16
  "Lines that Qwen Code 0.24 needs for a question with all answers.")

(defconst qwen-companion-terminal-kinds--least-lines-above 8
  "Lines that remain in the window that was split for a terminal.")

(defun qwen-companion-terminal-kinds--grow (window)
  "Enlarge WINDOW, a new one, for questions of a CLI.
Do nothing if the window that was split for it would become too small."
  (let ((missing (- qwen-companion-terminal-kinds--least-lines (window-body-height window)))
        (above (window-prev-sibling window)))
    (when (and above
               (> missing 0)
               (>= (- (window-height above) missing)
                   qwen-companion-terminal-kinds--least-lines-above))
      (adjust-window-trailing-edge above (- missing)))))

(defun qwen-companion-terminal-show (buffer)
  "Select a window with the terminal BUFFER, see `qwen-companion-terminal-side'."
  (pop-to-buffer
   buffer
   (if qwen-companion-terminal-side
       `((display-buffer-reuse-window display-buffer-in-side-window)
         (side . ,qwen-companion-terminal-side)
         ,(if (memq qwen-companion-terminal-side '(left right))
              '(window-width . 0.45)
            '(window-height . 0.4)))
     '(nil (window-height . qwen-companion-terminal-kinds--grow)))))

;;; Starting

(cl-defgeneric qwen-companion-terminal-start (kind buffer command)
  "Run COMMAND, a list of strings, in BUFFER, in a terminal of KIND.
A method for another KIND, a symbol, must first show BUFFER by
`qwen-companion-terminal-show'.  The library qwen-companion-terminal-KIND,
if there is one, is loaded before."
  (require kind)
  (qwen-companion-terminal-show buffer)
  (funcall (nth 1 (alist-get kind qwen-companion-terminal-kinds--emulators)) buffer command))

(defun qwen-companion-terminal-kinds-load (kind)
  "Load the user's library for terminals of KIND, if there is one."
  (unless (or (eq kind 'external)
              (assq kind qwen-companion-terminal-kinds--emulators))
    (require (intern (format "qwen-companion-terminal-%s" kind)) nil t)))

(defun qwen-companion-terminal-kinds--run-in-vterm (buffer command)
  "Run COMMAND in vterm in BUFFER, the current one, on the host of its directory."
  (let* ((vterm-shell (mapconcat #'shell-quote-argument command " "))
         (vterm-tramp-shells
          (list (list (file-remote-p default-directory 'method) vterm-shell))))
    (pcase-let ((`(,left . ,right) (window-margins)))
      (unless (display-graphic-p)
        ;; vterm starts its program one column wider than a text terminal
        ;; shows: it forgets the column of the continuation sign.
        (set-window-margins nil left (1+ (or right 0))))
      ;; At vterm's least width of 80, narrower windows would cut the lines of the CLI.
      (let ((vterm-min-window-width 1))
        (vterm-mode))
      (setq-local vterm-min-window-width 1)
      (set-window-margins nil left right))
    (add-function :around (process-sentinel (get-buffer-process buffer))
                  #'qwen-companion-terminal-kinds--vterm-ended)))

(defun qwen-companion-terminal-kinds--vterm-ended (sentinel process event)
  "Run vterm's SENTINEL with PROCESS and EVENT.
If the CLI has failed, keep its buffer, so that the output is readable."
  (let ((vterm-kill-buffer-on-exit
         (and vterm-kill-buffer-on-exit
              (eql 0 (process-exit-status process)))))
    (funcall sentinel process event)))

(defun qwen-companion-terminal-kinds--run-in-ghostel (buffer command)
  "Run COMMAND in Ghostel in BUFFER, the current one."
  (ghostel-mode)
  ;; The buffer keeps its name.
  (setq-local ghostel-buffer-name-function nil)
  ;; Make it a process of Emacs: otherwise Emacs does not know the CLI's
  ;; process id, by which a session finds its terminal.
  (let ((ghostel-use-native-pty nil))
    (ghostel-exec buffer (car command) (cdr command))))

;;; Typing

(defun qwen-companion-terminal-kinds-paste (text)
  "Paste TEXT into the terminal in the current buffer, ours or not."
  (if-let* ((paste (nth 2 (qwen-companion-terminal-kinds--of-buffer))))
      (funcall paste text)
    (process-send-string (get-buffer-process (current-buffer))
                         (concat "\e[200~" text "\e[201~"))))

(defun qwen-companion-terminal-kinds-return ()
  "Press return in the terminal in the current buffer, ours or not."
  (if-let* ((return (nth 3 (qwen-companion-terminal-kinds--of-buffer))))
      (funcall return)
    (process-send-string (get-buffer-process (current-buffer)) "\r")))

(defun qwen-companion-terminal-kinds--of-buffer ()
  "Return the row (MODE START PASTE RETURN) of the terminal in the current buffer."
  (cdr (cl-find-if #'derived-mode-p qwen-companion-terminal-kinds--emulators :key #'cadr)))

;;; Terminals outside of Emacs

(defvar-local qwen-companion-terminal-outside nil
  "Non-nil in a buffer that represents a terminal outside of Emacs.
Its process is that of the terminal; the buffer does not show its text.")

(cl-defmethod qwen-companion-terminal-start ((_kind (eql external)) buffer command)
  "Run COMMAND in a terminal of the desktop, represented by BUFFER."
  (let* ((directory (directory-file-name default-directory))
         (words (cl-loop for word in qwen-companion-terminal-external-command
                         if (equal word "%c") append command
                         else collect (string-replace "%d" directory word))))
    (unless (qwen-companion-programs-find (car words))
      (kill-buffer buffer)
      (user-error "No program `%s' found; customize `qwen-companion-terminal-external-command'"
                  (car words)))
    (with-current-buffer buffer
      (special-mode)
      (setq qwen-companion-terminal-outside t)
      (let ((inhibit-read-only t))
        (insert (format "The CLI in %s runs in %s, outside of Emacs.\n\n"
                        (abbreviate-file-name directory) (car words))
                (substitute-command-keys
                 "\\[qwen-companion-ask] sends a prompt to it.  Killing this buffer does not end it.\n\n")))
      (add-hook 'kill-buffer-hook #'qwen-companion-terminal-kinds--detach nil t))
    (qwen-companion-programs-start-for-user
     :name (format "qwen terminal: %s" (file-name-nondirectory directory))
     :buffer buffer :connection-type 'pipe :noquery t
     :command (cons (qwen-companion-programs-find (car words)) (cdr words))
     :sentinel #'qwen-companion-terminal-kinds--outside-ended)
    (message "The CLI starts in %s" (car words))))

(defun qwen-companion-terminal-kinds--detach ()
  "Detach the terminal of the current buffer, which is being killed.
Emacs would send it SIGHUP, which ends some terminals."
  (when-let* ((process (get-buffer-process (current-buffer))))
    (set-process-buffer process nil)))

(defun qwen-companion-terminal-kinds--outside-ended (process event)
  "Kill the buffer of the terminal PROCESS, which has ended with EVENT.
If the program has failed, keep it, so that the output is readable."
  (when-let* (((not (process-live-p process)))
              (buffer (process-buffer process))
              ((buffer-live-p buffer)))
    (if (eql 0 (process-exit-status process))
        (kill-buffer buffer)
      (message "The terminal of %s: %s" (buffer-name buffer) (string-trim event)))))

(provide 'qwen-companion-terminal-kinds)
;;; qwen-companion-terminal-kinds.el ends here
