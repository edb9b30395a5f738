;;; qwen-companion-attention.el --- Notify the user of a CLI's events  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Calls the functions on `qwen-companion-attention-functions' when a CLI or a
;; chat asks, has finished, has proposed a change, or has ended.  They notify
;; the user, unless its buffer is selected in a frame that has the focus.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-layer)
(require 'qwen-companion-messages)
(require 'qwen-companion-places)
(require 'qwen-companion-programs)
(require 'qwen-companion-proposal)
(require 'qwen-companion-terminal)
(require 'qwen-companion-untrusted)

(declare-function qwen-companion-prompts-waiting "qwen-companion-prompts" (&optional buffer))

(cl-defstruct (qwen-companion-event (:copier nil))
  "An event of which the user may want to be notified.
KIND is one of these:
  `asks'      a CLI asks in its terminal, or a chat asks;
  `done'      a turn has ended;
  `proposal'  a change, a plan or questions were proposed;
  `gone'      a CLI or chat session has ended during a turn;
  `failed'    the companion is not running, or a turn has failed.
TEXT is one sanitised line.  BUFFER is the chat or the terminal, nil if
that is not in this Emacs.  SECONDS is the duration of a `done' turn.
PROPOSAL is the proposal.  Both are nil for other kinds."
  kind text buffer seconds proposal)

(defcustom qwen-companion-attention-functions
  '(qwen-companion-attention-message)
  "Functions that notify the user of a CLI's events.
Each is called with a `qwen-companion-event', see its accessors
`qwen-companion-event-kind', `-text', `-buffer', `-seconds' and
`-proposal'.  None is called while the buffer of the terminal or chat is
selected in a frame that has the focus."
  :group 'qwen-companion
  :type 'hook
  :options '(qwen-companion-attention-message
             qwen-companion-attention-notify
             qwen-companion-attention-ring
             qwen-companion-attention-title))

(defcustom qwen-companion-attention-seconds 10
  "Shortest turn, in seconds, whose end is announced.
If nil, ends of turns are never announced."
  :group 'qwen-companion
  :type '(choice (natnum :tag "Seconds") (const :tag "Never" nil)))

;;; Events

(defun qwen-companion-attention--selected-p (buffer)
  "Return non-nil when BUFFER is selected in a frame that has the focus.
Terminals that do not report their focus count as focused.  Return nil for
the buffer of a terminal outside of Emacs."
  (and buffer
       (eq buffer (window-buffer (selected-window)))
       (not (buffer-local-value 'qwen-companion-terminal-outside buffer))
       (frame-focus-state)))

(defun qwen-companion-attention--call (event)
  "Call the user's functions with EVENT, unless the user is looking at it."
  (unless (qwen-companion-attention--selected-p (qwen-companion-event-buffer event))
    (dolist (function (ensure-list qwen-companion-attention-functions))
      ;; An error of one must not reach the CLI, nor prevent the others.
      (condition-case err
          (funcall function event)
        (error
         (message "qwen-companion: error in `qwen-companion-attention-functions': %s"
                  (error-message-string err)))))))

(defun qwen-companion-attention--name (session)
  "Return the name of the CLI of SESSION, with its project."
  (let ((client (qwen-companion-untrusted-text (qwen-companion-session-client session)))
        (directory (qwen-companion-session-directory session)))
    (concat (if (string-empty-p client) "Unnamed CLI" client)
            (and directory
                 (format " in %s"
                         (qwen-companion-untrusted-text
                          (if (qwen-companion-places-remote-p directory)
                              (qwen-companion-places-abbreviate directory)
                            (file-name-nondirectory (directory-file-name directory)))))))))

(defun qwen-companion-attention--report (kind session text &rest slots)
  "Make an event of KIND about SESSION; TEXT describes its activity.
SLOTS are further arguments for the `qwen-companion-event'."
  (qwen-companion-attention--call
   (apply #'make-qwen-companion-event
          :kind kind
          :text (format "%s %s" (qwen-companion-attention--name session) text)
          :buffer (qwen-companion-terminal-session-buffer session)
          slots)))

(defun qwen-companion-attention-report-chat (chat kind text &optional seconds)
  "Make an event of KIND about CHAT, a buffer; TEXT describes its activity.
SECONDS is the duration of the turn; the end of a short one is not
announced."
  (unless (and (eq kind 'done)
               (or (not qwen-companion-attention-seconds)
                   (< (or seconds 0) qwen-companion-attention-seconds)))
    (qwen-companion-attention--call
     (make-qwen-companion-event
      :kind kind :buffer chat :seconds seconds
      :text (format "%s %s" (qwen-companion-untrusted-text (buffer-name chat)) text)))))

(defun qwen-companion-attention-sessions-changed (before after)
  "Report each difference between BEFORE and AFTER, two lists of sessions."
  ;; Identical objects have not changed.
  (dolist (old (cl-remove-if (lambda (session) (memq session after)) before))
    (let* ((state (qwen-companion-session-state old))
           (activity (qwen-companion-cli-state-activity state))
           (new (cl-find (qwen-companion-session-id old) after
                         :key #'qwen-companion-session-id :test #'equal)))
      (cond
       ((and (not new) (memq activity '(working asking))
             (qwen-companion-session-pid old)
             (not (process-attributes (qwen-companion-session-pid old))))
        (qwen-companion-attention--report 'gone old "has ended during a turn"))
       (new
        (qwen-companion-attention--state-changed
         new state (qwen-companion-session-state new)))))))

(defun qwen-companion-attention--state-changed (session before after)
  "Report the change of SESSION from the state BEFORE to AFTER."
  (let ((was (qwen-companion-cli-state-activity before))
        (question (qwen-companion-cli-state-question after)))
    (pcase (qwen-companion-cli-state-activity after)
      ((and 'asking
            (guard (not (and (eq was 'asking)
                             (equal question (qwen-companion-cli-state-question before))))))
       (qwen-companion-attention--report
        'asks session
        (if question
            (format "asks: %s" (qwen-companion-untrusted-text
                                (qwen-companion-untrusted-cut question)))
          "asks in its terminal")))
      ((and 'failed (guard (not (eq was 'failed))))
       (qwen-companion-attention--report
        'failed session (qwen-companion-layer-failure session)))
      ((and 'idle (guard (memq was '(working asking))))
       (let ((seconds (/ (- (or (qwen-companion-cli-state-since after) 0)
                            (or (qwen-companion-cli-state-since before) 0))
                         1000)))
         (when (and qwen-companion-attention-seconds
                    (>= seconds qwen-companion-attention-seconds)
                    ;; It continues with the next prompt.
                    (not (qwen-companion-attention--prompt-waits-p session)))
           (qwen-companion-attention--report
            'done session (format "is done after %s" (qwen-companion-layer-duration seconds))
            :seconds seconds)))))))

(defun qwen-companion-attention--prompt-waits-p (session)
  "Return non-nil if a prompt is queued for SESSION."
  (when-let* (((featurep 'qwen-companion-prompts))
              (buffer (qwen-companion-terminal-session-buffer session)))
    (qwen-companion-prompts-waiting buffer)))

(defun qwen-companion-attention--proposed (proposal)
  "Announce PROPOSAL, which has arrived, unless the user has asked for it.
A chat announces its own questions."
  (unless (or (qwen-companion-proposal-requested-p proposal)
              (qwen-companion-proposal-chat proposal))
    (let ((session (qwen-companion-backend-session (qwen-companion-proposal-session proposal))))
      (qwen-companion-attention--call
       (make-qwen-companion-event
        :kind 'proposal
        :text (format "%s %s"
                      (qwen-companion-untrusted-text (qwen-companion-proposal-client proposal))
                      (qwen-companion-proposal-summary proposal))
        :buffer (and session (qwen-companion-terminal-session-buffer session))
        :proposal proposal)))))

(defun qwen-companion-attention--companion-changed (state)
  "Announce that the companion has failed, if STATE is `error'."
  (when (eq state 'error)
    (qwen-companion-attention--call
     (make-qwen-companion-event
      :kind 'failed :text (format "Not running: %s" (qwen-companion-backend-failure))))))

(defconst qwen-companion-attention--hooks
  '((qwen-companion-proposal-begun-functions . qwen-companion-attention--proposed)
    (qwen-companion-state-functions . qwen-companion-attention--companion-changed)
    (window-selection-change-functions . qwen-companion-attention--selection-changed))
  "The hooks in use while the mode is on: (HOOK . FUNCTION).")

(defun qwen-companion-attention-enable ()
  "Start announcing events."
  (pcase-dolist (`(,hook . ,function) qwen-companion-attention--hooks)
    ;; It runs after the functions that show a proposal in the echo area.
    (add-hook hook function 90)))

(defun qwen-companion-attention-disable ()
  "Stop announcing events."
  (qwen-companion-buffers-set-hooks qwen-companion-attention--hooks nil)
  (qwen-companion-attention--clear-title))

;;; Kinds of notification

(defun qwen-companion-attention-message (event)
  "Show EVENT in the echo area.
Proposals and failures of the companion are shown there anyway."
  (unless (or (eq 'proposal (qwen-companion-event-kind event))
              (and (eq 'failed (qwen-companion-event-kind event))
                   (not (qwen-companion-event-buffer event))))
    (message "qwen-companion: %s" (qwen-companion-event-text event))))

(defun qwen-companion-attention-ring (_event)
  "Ring the bell, see `ring-bell-function' and `visible-bell'."
  ;; Ringing must not end a keyboard macro.
  (ding t))

(declare-function dbus-call-method-asynchronously "dbus"
                  (bus service path interface method handler &rest args))
(defvar notifications-service)
(defvar notifications-path)
(defvar notifications-interface)
(defvar notifications-notify-method)

(defun qwen-companion-attention-notify (event)
  "Show EVENT as a notification of the desktop.
Use D-Bus, or osascript(1) on macOS; without either, do nothing."
  (let ((text (qwen-companion-event-text event)))
    (cond
     ((and (featurep 'dbusbind) (getenv "DBUS_SESSION_BUS_ADDRESS"))
      (require 'notifications)
      ;; `notifications-notify' would block until the desktop answers.
      (dbus-call-method-asynchronously
       :session notifications-service notifications-path notifications-interface
       notifications-notify-method nil
       "Emacs" :uint32 0 "emacs" "Qwen companion"
       ;; Some desktops understand markup.
       (replace-regexp-in-string
        "[&<>]"
        (lambda (character)
          (pcase character ("&" "&amp;") ("<" "&lt;") (_ "&gt;")))
        text t t)
       '(:array) '(:array :signature "{sv}") :int32 -1))
     ((and (eq system-type 'darwin) (qwen-companion-programs-find "osascript"))
      (qwen-companion-programs-start
       :name "qwen-companion-notification" :noquery t
       :command (list "osascript"
                      "-e" "on run argv"
                      "-e" "display notification (item 1 of argv) with title \"Qwen companion\""
                      "-e" "end run" text))))))

(defvar qwen-companion-attention--title nil
  "Text before the frame title and the buffer of its event: (TEXT . BUFFER).")

(defun qwen-companion-attention-title (event)
  "Put EVENT before the title of frames until its terminal is selected.
If it has no terminal, keep it until another window is selected."
  (setq qwen-companion-attention--title
        (cons (qwen-companion-event-text event) (qwen-companion-event-buffer event)))
  (unless (qwen-companion-attention--titled-p)
    (setq frame-title-format
          (list '(:eval (qwen-companion-attention--title-text)) frame-title-format)))
  (force-mode-line-update t))

(defun qwen-companion-attention--titled-p ()
  "Return non-nil when our text is before the frame title."
  (equal '(:eval (qwen-companion-attention--title-text))
         (car-safe frame-title-format)))

(defun qwen-companion-attention--title-text ()
  "Return the text before the frame title."
  (if qwen-companion-attention--title
      (format "[%s] " (car qwen-companion-attention--title))
    ""))

(defun qwen-companion-attention--selection-changed (_frame)
  "Clear the frame title if the terminal of its event has been selected."
  (when qwen-companion-attention--title
    (let ((buffer (cdr qwen-companion-attention--title)))
      (when (or (not (buffer-live-p buffer))
                (eq buffer (window-buffer (selected-window))))
        (qwen-companion-attention--clear-title)))))

(defun qwen-companion-attention--clear-title ()
  "Restore the frame title."
  (setq qwen-companion-attention--title nil)
  (when (qwen-companion-attention--titled-p)
    (setq frame-title-format (cadr frame-title-format))))

(provide 'qwen-companion-attention)
;;; qwen-companion-attention.el ends here
