;;; qwen-companion.el --- IDE for the Qwen Code and Gemini CLIs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; Author: The qwen-companion authors
;; Assisted-by: Claude
;; Maintainer: The qwen-companion authors
;; Version: 0.1.0
;; Package-Requires: ((emacs "28.1") (epc "0.1.1"))
;; Keywords: tools, processes, vc
;; URL: https://github.com/qwen-companion/qwen-companion

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; With `qwen-companion-mode' on, the Qwen Code and Gemini CLIs know which
;; files are open in Emacs, where point is and what is selected, and the
;; edits they propose open as reviews to change, accept or reject.
;;
;;     M-x qwen-companion-mode
;;     M-x qwen-companion-run
;;
;; The rules we keep: Emacs shows diffs with Ediff and `diff-mode', knows
;; projects by project.el and files by their buffers; we add none of that
;; anew.  User input is never discarded, and no text is lost.

;;; Code:

;; In a checkout the rest is in the folders of lisp/; a package may have it all
;; beside this file.  package-vc collects the autoloads of this folder alone.
;;;###autoload
(eval-and-compile
  ;; The second is right where a file that is being loaded compiles this one.
  (dolist (file (list load-file-name (bound-and-true-p byte-compile-current-file) buffer-file-name))
    (let ((lisp (and file (expand-file-name "lisp/" (file-name-directory file)))))
      (when (and lisp (file-exists-p (expand-file-name "qwen-companion-loaddefs.el" lisp)))
        (dolist (folder (directory-files lisp t "\\`[a-z]+\\'"))
          (add-to-list 'load-path folder))
        (load (expand-file-name "qwen-companion-loaddefs" lisp) nil t)))))

;; An update by package-vc keeps what an older version, all in this folder, was compiled to.
(eval-when-compile
  (when (bound-and-true-p byte-compile-current-file)
    (dolist (file (directory-files (file-name-directory byte-compile-current-file) t "\\`qwen-companion-.*\\.elc\\'"))
      (unless (file-exists-p (substring file 0 -1))
        (delete-file file)))))

(require 'qwen-companion-attention)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-changes-signs)
(require 'qwen-companion-comments)
(require 'qwen-companion-container)
(require 'qwen-companion-context)
(require 'qwen-companion-diagnostics)
(require 'qwen-companion-disk)
(require 'qwen-companion-drafts)
(require 'qwen-companion-environment)
(require 'qwen-companion-follow)
(require 'qwen-companion-follow-far)
(require 'qwen-companion-inspector)
(require 'qwen-companion-journal)
(require 'qwen-companion-layer)
(require 'qwen-companion-list)
(require 'qwen-companion-merge)
(require 'qwen-companion-messages)
(require 'qwen-companion-plan)
(require 'qwen-companion-proposal)
(require 'qwen-companion-registry)
(require 'qwen-companion-remote)
(require 'qwen-companion-review)
(require 'qwen-companion-review-ediff)
(require 'qwen-companion-review-list)
(require 'qwen-companion-review-unified)
(require 'qwen-companion-roots)
(require 'qwen-companion-servers)
(require 'qwen-companion-session-list)
(require 'qwen-companion-terminal)
(require 'qwen-companion-timers)
(require 'qwen-companion-tools)
(require 'qwen-companion-tools-read)
(require 'qwen-companion-welcome)

(defgroup qwen-companion nil
  "Emacs as the IDE of the Qwen Code CLI."
  :group 'tools
  :prefix "qwen-companion-"
  :link '(url-link :tag "Website"
                   "https://github.com/qwen-companion/qwen-companion"))

;;; Mode line

(declare-function qwen-companion-chat-permissions-lighter
                  "qwen-companion-chat-permissions" ())
(declare-function qwen-companion-daemon-lighter "qwen-companion-daemon" ())
(declare-function qwen-companion-prompts-sessions-changed "qwen-companion-prompts" ())

(defun qwen-companion--lighter ()
  "Return the text for the mode line: state, CLIs, proposals, unsaved text.
Include the daemon's state and requests once its files are loaded."
  (let ((sessions (length (qwen-companion-backend-sessions)))
        (proposals (length (qwen-companion-proposals))))
    (pcase (qwen-companion-state)
      ;; Off is for as long as the mode asks whether to make the environment.
      ((or 'starting 'off) " Qwen:starting")
      ('error (propertize " Qwen:error" 'face 'error
                          'help-echo (qwen-companion-backend-failure)))
      (_ (concat
          (cond ((> proposals 0)
                 (propertize (format " Qwen[%d!%d]" sessions proposals)
                             'face 'warning
                             'help-echo #'qwen-companion-session-list-help))
                ((> sessions 0)
                 (propertize (format " Qwen[%d]" sessions)
                             'help-echo #'qwen-companion-session-list-help))
                ((qwen-companion-roots-unreachable)
                 (propertize " Qwen:no-root" 'face 'warning
                             'help-echo (qwen-companion-roots-unreachable)))
                (t " Qwen"))
          (when (and (> sessions 0) (qwen-companion-context-unsaved-p))
            (propertize "*" 'help-echo
                        "The file you are in has unsaved text: the CLI reads it from disk"))
          (qwen-companion-layer-lighter)
          (when-let* ((proposal (cl-find-if-not #'qwen-companion-proposal-file-p
                                                (qwen-companion-proposals))))
            (propertize (format " %s" (qwen-companion-proposal-kind proposal))
                        'face 'warning 'help-echo (qwen-companion-proposal-summary proposal)))
          (pcase (qwen-companion-layer-activity)
            ('asking (propertize " asks" 'face 'warning
                                 'help-echo #'qwen-companion-session-list-help))
            ('failed (propertize " failed" 'face 'warning
                                 'help-echo #'qwen-companion-session-list-help))
            ('working (propertize " working" 'help-echo #'qwen-companion-session-list-help)))
          (qwen-companion-remote-lighter)
          (qwen-companion-follow-lighter)
          (when (featurep 'qwen-companion-daemon)
            (qwen-companion-daemon-lighter))
          (when (featurep 'qwen-companion-chat-permissions)
            (qwen-companion-chat-permissions-lighter)))))))

(defvar qwen-companion--lighter-map
  (qwen-companion-buffers-keymap
   [mode-line mouse-1] #'qwen-companion-menu-popup
   [mode-line mouse-2] #'qwen-companion
   [mode-line down-mouse-3] mode-line-mode-menu)
  "Keymap of the text in the mode line.")

(defun qwen-companion--lighter-help (window object position)
  "Return the state in words, with the mouse buttons' effects, for `help-echo'.
WINDOW, OBJECT and POSITION are as there: the part of the text."
  (let ((own (and (stringp object)
                  (get-text-property position 'qwen-companion-help object))))
    (concat (or (if (functionp own) (funcall own window object position) own)
                (qwen-companion--state-words))
            (mapconcat (lambda (text) (concat "\n" text))
                       (qwen-companion-journal-problems) "")
            "\nmouse-1: menu, mouse-2: all commands and options")))

(defun qwen-companion--state-words ()
  "Return the state of the companion in words."
  (pcase (qwen-companion-state)
    ('starting "The companion is starting")
    ('error (format "The companion is not running: %s" (qwen-companion-backend-failure)))
    (_ (qwen-companion-session-list-summary))))

(defun qwen-companion--lighter-parts ()
  "Return the text for the mode line as a mode line construct.
Emacs gives all of a minor mode's string the properties of its first
character, and those of any minor mode, but for those of a construct: so
each part with properties of its own is one."
  (let ((text (qwen-companion--lighter))
        (start 0)
        parts)
    (while (< start (length text))
      (let* ((end (next-property-change start text (length text)))
             (part (substring text start end)))
        (push `(:propertize
                ,(propertize (substring-no-properties part)
                             'qwen-companion-help (get-text-property 0 'help-echo part))
                face ,(get-text-property 0 'face part)
                mouse-face mode-line-highlight
                help-echo qwen-companion--lighter-help
                local-map ,qwen-companion--lighter-map)
              parts)
        (setq start end)))
    (cons "" (nreverse parts))))

;;; Wiring

(defconst qwen-companion--methods
  '((published . qwen-companion--on-published)
    (files . qwen-companion-backend-on-files)
    (serving . qwen-companion-backend-on-serving)
    (sessions . qwen-companion--on-sessions)
    (context-sent . qwen-companion-inspector-on-context-sent)
    (hook-answers . qwen-companion-inspector-on-hook-answers)
    (exclusions . qwen-companion-inspector-on-exclusions)
    (notice . qwen-companion-backend-on-notice)
    (file-visited . qwen-companion-layer-on-file-visited)
    (proposal-open . qwen-companion-proposal-on-open)
    (proposal-close . qwen-companion-proposal-on-close)
    (proposal-orphan . qwen-companion-proposal-on-orphan)
    (proposal-released . qwen-companion-proposal-on-released)
    (proposal-written . qwen-companion-proposal-on-written)
    (type-key . qwen-companion-comments-on-type-key)
    (delivered . qwen-companion-proposal-on-delivered)
    (tool-call . qwen-companion-tools-on-call)
    (tool-called . qwen-companion-inspector-on-tool-called)
    (edit-begins . qwen-companion-diagnostics-on-edit-begins)
    (recorded-sessions . qwen-companion-backend-on-answer)
    (plans . qwen-companion-backend-on-answer)
    (registered . qwen-companion-registry-on-registered)
    (registry-ended . qwen-companion-registry-on-ended)
    (registry-receipt . qwen-companion-registry-on-receipt)
    (recorded-rewound . qwen-companion-backend-on-answer)
    (compared . qwen-companion-merge-on-compared)
    (merged . qwen-companion-merge-on-merged)
    (place . qwen-companion-remote-on-place)
    (place-file . qwen-companion-follow-far-on-file)
    (place-checks . qwen-companion-backend-on-answer)
    (place-files . qwen-companion-prompt-completion-on-place-files)
    (run-command . qwen-companion-remote-on-run-command)
    (journal-turns . qwen-companion-journal-on-turns)
    (rewind-took . qwen-companion-recover-on-took)
    (journal-unrecorded . qwen-companion-journal-on-unrecorded)
    (journal-reply . qwen-companion-journal-on-reply))
  "The methods that the Python process may call: (METHOD . FUNCTION).")

(defun qwen-companion--on-published (payload)
  "Handle the `published' message PAYLOAD: discovery files are on disk."
  (qwen-companion-roots-on-published payload)
  (qwen-companion-follow-update)
  (qwen-companion-terminal-set-environment
   (qwen-companion-published-environment payload))
  (mapc #'qwen-companion-backend-notice-once
        (qwen-companion-published-warnings payload))
  ;; Last: once it is ready, terminals have the variables.
  (qwen-companion-backend-on-published payload)
  (qwen-companion-layer-on-published payload)
  (qwen-companion-terminal-published)
  (qwen-companion-welcome-if-due)
  nil)

(defun qwen-companion--on-sessions (payload)
  "Handle the `sessions' message PAYLOAD: CLIs have come, gone or changed."
  (let ((before (qwen-companion-backend-sessions)))
    (qwen-companion-backend-on-sessions payload)
    (qwen-companion-attention-sessions-changed
     before (qwen-companion-backend-sessions)))
  (qwen-companion-review-sessions-changed)
  (qwen-companion-follow-update)
  (when (featurep 'qwen-companion-prompts)
    (qwen-companion-prompts-sessions-changed))
  (qwen-companion-session-list-refresh)
  (qwen-companion-inspector-changed)
  nil)

(defun qwen-companion--state-changed (state)
  "Follow the companion into STATE.
In `error', restore the environment of new terminals; in `ready', tell
the user of texts that a killed Emacs has left."
  (pcase state
    ('error (qwen-companion-terminal-restore-environment))
    ('ready
     (when-let* ((drafts (qwen-companion-drafts-orphaned)))
       (qwen-companion-backend-notice-once
        (format (ngettext "%d text that you were writing when Emacs was killed is saved; M-x qwen-companion-recover-drafts brings it back"
                          "%d texts that you were writing when Emacs was killed are saved; M-x qwen-companion-recover-drafts brings them back"
                          (length drafts))
                (length drafts)))))))

(defun qwen-companion--connected ()
  "Send the current state to a new Python process."
  (qwen-companion-tools-resend)
  (qwen-companion-context-resend)
  (qwen-companion-remote-resend)
  (qwen-companion-proposal-resend)
  (qwen-companion-inspector-resend))

(defconst qwen-companion--hooks
  '((qwen-companion-backend-connected-hook . qwen-companion--connected)
    (qwen-companion-backend-disconnected-hook . qwen-companion-registry-forget)
    (qwen-companion-backend-disconnected-hook . qwen-companion-plan-process-gone)
    (qwen-companion-backend-call-failed-functions . qwen-companion-proposal-on-call-failed)
    (qwen-companion-state-functions . qwen-companion-follow-update)
    (qwen-companion-state-functions . qwen-companion--state-changed)
    (qwen-companion-disk-written-functions . qwen-companion-review-file-written)
    (qwen-companion-disk-written-functions . qwen-companion-rescue-file-written)
    (savehist-mode-hook . qwen-companion--keep-prompts)
    (kill-emacs-hook . qwen-companion--disable)
    (after-delete-frame-functions . qwen-companion-review-frame-deleted))
  "The hooks in use while the mode is on: (HOOK . FUNCTION).")

(defvar savehist-additional-variables)

(defun qwen-companion--keep-prompts ()
  "Have `savehist-mode', if it is on, keep the prompt history.
It would forget that in a session of Emacs in which nothing is asked.
That stays when the mode is turned off: Emacs may be ending."
  (when (bound-and-true-p savehist-mode)
    (add-to-list 'savehist-additional-variables 'qwen-companion-prompts-history)))

(defun qwen-companion--enable ()
  "Start everything."
  (setq qwen-companion-backend-methods qwen-companion--methods
        qwen-companion-backend-environment-function #'qwen-companion-terminal-environment-before
        qwen-companion-backend-proposals-function #'qwen-companion-proposal-snapshot)
  (qwen-companion-buffers-set-hooks qwen-companion--hooks t)
  (qwen-companion--keep-prompts)
  (qwen-companion-attention-enable)
  (qwen-companion-follow-enable)
  (qwen-companion-remote-enable)
  (qwen-companion-context-enable)
  (qwen-companion-journal-enable)
  (qwen-companion-changes-signs-enable)
  (qwen-companion-servers-enable)
  (qwen-companion-welcome-note-start)
  (qwen-companion-backend-start))

(defun qwen-companion--disable ()
  "Stop everything and leave nothing behind."
  (qwen-companion-buffers-set-hooks qwen-companion--hooks nil)
  (qwen-companion-tools-forget)
  (qwen-companion-diagnostics-forget)
  (qwen-companion-inspector-forget)
  (qwen-companion-review-stop-waiting)
  (qwen-companion-proposal-end-all)
  (qwen-companion-list-close 'qwen-companion-diffs-mode)
  (qwen-companion-list-close 'qwen-companion-sessions-mode)
  (qwen-companion-disk-forget-all)
  (qwen-companion-attention-disable)
  (qwen-companion-follow-disable)
  (qwen-companion-context-disable)
  (qwen-companion-changes-signs-disable)
  (qwen-companion-journal-disable)
  (qwen-companion-remote-disable)
  (qwen-companion-terminal-forget)
  (qwen-companion-terminal-restore-environment)
  (qwen-companion-backend-stop)
  (qwen-companion-timers-forget)
  (setq qwen-companion-backend-methods nil
        qwen-companion-backend-environment-function #'ignore
        qwen-companion-backend-proposals-function #'ignore))

(defun qwen-companion--turn-on-once ()
  "Turn the mode on now that there is an environment."
  (remove-hook 'qwen-companion-environment-made-hook #'qwen-companion--turn-on-once)
  (qwen-companion-mode 1)
  (message "qwen-companion: the Python environment is ready, and the mode is on"))

(defun qwen-companion--offer-environment ()
  "Offer the Python environment where it is missing; return the answer.
When it is made, the mode comes on."
  (when (qwen-companion-environment-offer)
    (add-hook 'qwen-companion-environment-made-hook #'qwen-companion--turn-on-once)
    t))

(autoload 'qwen-companion-menu-popup "qwen-companion-menu" nil t)

(defvar qwen-companion-mode-map
  (qwen-companion-buffers-keymap
   [menu-bar qwen-companion] '(menu-item "Qwen" ignore :filter qwen-companion-menu-bar))
  "Keymap of `qwen-companion-mode': a menu in the menu bar, and no key.")

;;;###autoload
(define-minor-mode qwen-companion-mode
  "Make this Emacs the IDE of the Qwen Code CLI.

While the mode is on, a `qwen' that is started in a terminal learns
which files are open, where point is and what is selected, and proposes
its edits as reviews in Emacs.  \\[qwen-companion-run] starts one.

In a review, \\<qwen-companion-review-buffer-mode-map>\\[qwen-companion-diff-accept] accepts the proposal with your edits
and \\[qwen-companion-diff-reject] rejects it.

The mode line says whether the companion is starting, could not be
started, has no project for a CLI to run in, how many CLIs are
connected, and how many proposals wait.  While a CLI is connected, a
star means that the file in focus has unsaved text, which the CLI does not
see on disk.  Buffers then follow writes to their files, and their mode
lines show a deleted or renamed file, and a difference for you to resolve."
  :global t
  :lighter (:eval (qwen-companion--lighter-parts))
  (cond ((not qwen-companion-mode)
         (qwen-companion--disable))
        ;; On already, as when an init file is evaluated again.
        ((not (eq 'off (qwen-companion-state))))
        ((and (called-interactively-p 'any) (qwen-companion--offer-environment))
         (setq qwen-companion-mode nil))
        (t (qwen-companion--enable))))

;;;###autoload
(defun qwen-companion-run (directory &optional another)
  "Start Qwen Code in a terminal in the project, or go to it.
The CLI runs in the root of the current project, or in the current
directory where there is no project; where that is remote, it runs there,
see `qwen-companion-remote-places'.  If the project's dev container runs,
offer to start it in that.  With a prefix argument, ask for the DIRECTORY
and start ANOTHER one there.  Turns `qwen-companion-mode' on.
See the options `qwen-companion-qwen-command',
`qwen-companion-approval-mode' and `qwen-companion-terminal'."
  (interactive
   (if current-prefix-arg
       (list (read-directory-name "Run Qwen Code in: " nil nil t) t)
     (list (qwen-companion-container-offer (qwen-companion-roots-here)))))
  (qwen-companion-start-cli directory nil another (called-interactively-p 'any)))

(defun qwen-companion-start-cli (directory arguments another interactive)
  "Start the CLI with ARGUMENTS in DIRECTORY, and turn the mode on.
Unless ANOTHER is non-nil, go to the one that is running there, if any.
With INTERACTIVE, the Python environment may be made first."
  (let* ((remote (file-remote-p directory))
         (directory (directory-file-name (expand-file-name directory)))
         (here (or (and remote (not another) (qwen-companion-places-root directory))
                   directory)))
    (unless (or remote (file-directory-p directory))
      (user-error "No directory %s" directory))
    (unless (and (not another) (qwen-companion-terminal-go-to here))
      ;; Nothing is turned on for a CLI that cannot be started.
      (if remote
          (qwen-companion-remote-check remote)
        (qwen-companion-terminal-command))
      (unless qwen-companion-mode
        (when (and interactive (qwen-companion--offer-environment))
          (user-error "The Python environment is being made; the mode comes on after it"))
        (qwen-companion-mode 1))
      (when (eq (qwen-companion-state) 'error)
        (user-error "The companion is not running: %s"
                    (qwen-companion-backend-failure)))
      (if remote
          (qwen-companion-remote-run directory arguments (not another))
        (qwen-companion-terminal-open directory arguments)))))

;;;###autoload
(defun qwen-companion-continue (directory)
  "Start a CLI to continue the newest conversation of the project.
Where it is open, go there, see `qwen-companion-resume'.  With a prefix
argument, ask for the DIRECTORY."
  (interactive
   (list (if current-prefix-arg
             (read-directory-name "Continue in: " nil nil t)
           (qwen-companion-terminal-here))))
  (if (eq 'ready (qwen-companion-state))
      (qwen-companion-resume directory t)
    (qwen-companion-start-cli directory '("--continue") t t)))

;;;###autoload
(defun qwen-companion-run-in-worktree (name)
  "Start a CLI in a git worktree NAME of the project's repository.
If it does not exist, create it below .qwen/worktrees, with a branch
worktree-NAME.  An empty NAME is replaced by one made from the time.
`qwen-companion-worktrees' lists the worktrees and removes them."
  (interactive "sWorktree (empty: named by the time): ")
  (let ((directory (qwen-companion-terminal-here))
        (name (if (string-blank-p name)
                  (format-time-string "agent-%m%d-%H%M%S")
                (string-trim name))))
    (if (file-remote-p directory)
        ;; There, the CLI makes it.
        (qwen-companion-start-cli directory (list (concat "--worktree=" name)) t t)
      (message "Starting in worktree %s%s" name
               (qwen-companion-terminal-in-worktrees
                directory (list name)
                (lambda (tree) (qwen-companion-start-cli tree nil t nil)))))))

;;;###autoload
(defun qwen-companion-restart ()
  "End the CLI of this terminal, or of the project, and start it again.
It gets the same arguments, and a new conversation; `qwen-companion-resume'
goes on with the old one.  Text typed and not sent is lost."
  (interactive)
  (let* ((directory (qwen-companion-terminal-here))
         (buffer (or (and qwen-companion-terminal-directory (current-buffer))
                     (car (qwen-companion-terminal-recent directory))
                     (user-error "No CLI terminal in %s; M-x qwen-companion-run starts one"
                                 directory)))
         (process (get-buffer-process buffer)))
    (when (or (not (process-live-p process))
              (yes-or-no-p (format "End the CLI in %s and start it again? "
                                   (buffer-name buffer))))
      (let ((arguments (buffer-local-value 'qwen-companion-terminal-arguments buffer))
            (kill-buffer-query-functions nil))
        (when process
          (set-process-query-on-exit-flag process nil)
          (when (buffer-local-value 'qwen-companion-terminal-outside buffer)
            ;; It goes on without its buffer.
            (delete-process process)))
        (kill-buffer buffer)
        (qwen-companion-start-cli directory arguments t t)))))

;;;###autoload
(defun qwen-companion-toggle ()
  "Hide the terminal of the project's CLI, or show it, or start a CLI."
  (interactive)
  (let* ((directory (qwen-companion-terminal-here))
         (terminals (qwen-companion-terminal-recent directory))
         (window (seq-some #'get-buffer-window terminals)))
    (cond (window (quit-restore-window window 'bury))
          (terminals (qwen-companion-terminal-show (car terminals)))
          (t (qwen-companion-start-cli directory nil nil t)))))

;;; Former names

(pcase-dolist (`(,old . ,new)
               '((qwen-companion-changes-bring-back-here . qwen-companion-changes-bring-back)
                 (qwen-companion-changes-comment-here . qwen-companion-changes-comment)
                 (qwen-companion-changes-compare-with-proposal-here
                  . qwen-companion-changes-compare-with-proposal)
                 (qwen-companion-changes-copy-patch-here . qwen-companion-changes-copy-patch)
                 (qwen-companion-changes-ediff-here . qwen-companion-changes-ediff)
                 (qwen-companion-changes-mark-seen-here . qwen-companion-changes-mark-seen)
                 (qwen-companion-changes-next-change . qwen-companion-changes-next)
                 (qwen-companion-changes-previous-change . qwen-companion-changes-previous)
                 (qwen-companion-changes-undo-here . qwen-companion-changes-undo)
                 (qwen-companion-chat-send-buffer . qwen-companion-chat-send-region)
                 (qwen-companion-chat-send-marked . qwen-companion-chat-send-file)))
  ;; Until 1.0.
  (define-obsolete-function-alias old new "0.1.0"))

(provide 'qwen-companion)
;;; qwen-companion.el ends here
