;;; qwen-companion-prompts.el --- Sending prompts to CLIs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Sends prompts to the CLIs in terminals of this Emacs.  A CLI that was
;; started to read prompts from a file gets them there, and unsent text in its
;; terminal is kept; to other CLIs they are pasted.
;;
;; While a CLI that reports its activity works, prompts for it are queued here.
;; Each becomes a turn of its own, in order, and can be taken back before.  The
;; CLI itself would join them into one.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-messages)
(require 'qwen-companion-registry)
(require 'qwen-companion-spool)
(require 'qwen-companion-terminal)
(require 'qwen-companion-timers)

;;; History

(defvar qwen-companion-prompts-history nil
  "Prompts, sent or unsent, by project: an alist (ROOT . PROMPTS).
The newest is first.  `savehist-mode' saves it.")

(defvar savehist-additional-variables)

(defun qwen-companion-prompts-of (root)
  "Return each prompt of the project ROOT, sent or unsent, newest first."
  (alist-get root qwen-companion-prompts-history nil nil #'equal))

(defun qwen-companion-prompts-remember (root prompt)
  "Put PROMPT first in the history of ROOT, unless it is blank."
  ;; With a property that cannot be read again, such as a buffer, `savehist-mode'
  ;; would lose its whole file.
  (setq prompt (substring-no-properties prompt))
  (unless (string-blank-p prompt)
    (when (bound-and-true-p savehist-mode)
      (add-to-list 'savehist-additional-variables 'qwen-companion-prompts-history))
    (setf (alist-get root qwen-companion-prompts-history nil nil #'equal)
          (seq-take (cons prompt (remove prompt (qwen-companion-prompts-of root)))
                    (if (natnump history-length) history-length 100)))))

;; A prompt of the history keeps its edits until the next one is sent.

(defvar-local qwen-companion-prompts--shown nil
  "The prompt of the history that is shown, without edits; nil for the unsent one.")

(defvar-local qwen-companion-prompts--edits nil
  "Alist of the prompts edited since the last was sent: (SHOWN . TEXT).
SHOWN is as in `qwen-companion-prompts--shown'.")

(defun qwen-companion-prompts-set-edit (text)
  "Note TEXT as the edited form of the shown prompt; nil forgets it."
  (setf (alist-get qwen-companion-prompts--shown qwen-companion-prompts--edits
                   nil 'remove #'equal)
        (and (not (equal text qwen-companion-prompts--shown)) text)))

(defun qwen-companion-prompts-save-edits (remember)
  "Call REMEMBER with each edited prompt, and forget it here."
  (pcase-dolist (`(,_ . ,text) qwen-companion-prompts--edits)
    (funcall remember text))
  (setq qwen-companion-prompts--shown nil
        qwen-companion-prompts--edits nil))

(defun qwen-companion-prompts-show (prompt text)
  "Return PROMPT of the history with its edits; nil means the unsent one.
TEXT is the edited text of the prompt shown until now; save it."
  (qwen-companion-prompts-set-edit text)
  (setq qwen-companion-prompts--shown prompt)
  (or (alist-get prompt qwen-companion-prompts--edits nil nil #'equal) prompt ""))

(defun qwen-companion-prompts-previous (history count text)
  "Return the COUNTth prompt before the shown one in HISTORY, a list.
The newest is first.  TEXT is as in `qwen-companion-prompts-show'.  Signal
a `user-error' if there is none."
  ;; Prompts may have been sent from elsewhere meanwhile.
  (let ((place (+ (or (seq-position history qwen-companion-prompts--shown) -1) count)))
    (when (>= place (length history))
      (user-error "No prompt before this one"))
    (when (< place -1)
      (user-error "No prompt after this one"))
    (qwen-companion-prompts-show (and (>= place 0) (nth place history)) text)))

;;; The queue

(defconst qwen-companion-prompts--begin-seconds 5
  "Seconds after which an unconfirmed prompt no longer delays the next.
Most CLIs do not report the start of a slash command.")

(defconst qwen-companion-prompts--hooks-seconds 10
  "Seconds to wait for the first report of a CLI that has just started.")

(defconst qwen-companion-prompts--retry-seconds 2
  "Seconds between checks of a terminal that has typed text.")

(cl-defstruct (qwen-companion-prompts--prompt
               (:constructor qwen-companion-prompts--make-prompt)
               (:copier nil))
  "A queued prompt: its TEXT, about the project ROOT.
TIME is its arrival in milliseconds since the epoch.  With ANYWAY it is
sent even if the turn before it is cancelled."
  text root time anyway)

(defvar-local qwen-companion-prompts--waiting nil
  "The prompts queued for the CLI in this terminal buffer, oldest first.")

(defvar-local qwen-companion-prompts--sent nil
  "Time at which the last prompt was sent to the CLI in this terminal buffer.
In milliseconds since the epoch; nil after the CLI has begun with it.")

(defvar-local qwen-companion-prompts--timer nil
  "Timer for the queue of this terminal buffer.")

(defun qwen-companion-prompts-waiting (&optional buffer)
  "Return each queued prompt, oldest first, as (TERMINAL-BUFFER ROOT TEXT).
With BUFFER, return only those for the CLI in that terminal."
  (cl-loop for terminal in (if buffer (list buffer) (buffer-list))
           nconc (mapcar (lambda (prompt)
                           (list terminal
                                 (qwen-companion-prompts--prompt-root prompt)
                                 (qwen-companion-prompts--prompt-text prompt)))
                         (buffer-local-value 'qwen-companion-prompts--waiting terminal))))

(defun qwen-companion-prompts-take-back (buffer text)
  "Remove the prompt TEXT from the queue of the CLI in BUFFER.
Return nil if it is no longer there."
  (with-current-buffer buffer
    (when-let* ((prompt (seq-find (lambda (prompt)
                                    (equal text (qwen-companion-prompts--prompt-text prompt)))
                                  qwen-companion-prompts--waiting)))
      (setq qwen-companion-prompts--waiting
            (remq prompt qwen-companion-prompts--waiting))
      t)))

;;; Sending

(defun qwen-companion-prompts-send (session root text &optional anyway)
  "Send the prompt TEXT about the project ROOT to the CLI SESSION.
If we have not started the CLI, use its socket if possible; if the
previous prompt has not arrived, offer to paste this one.  While the CLI
works, queue the prompt.  If the turn is cancelled meanwhile, drop it,
unless ANYWAY is non-nil.  Return the outcome, as text for the echo area,
or signal a `user-error'.  In any case, add TEXT to the history."
  (qwen-companion-prompts-remember root text)
  (let* ((buffer (qwen-companion-terminal-session-buffer session))
         (name (and buffer (buffer-name buffer)))
         (state (qwen-companion-session-state session))
         (cli (qwen-companion-registry-of session)))
    (cond
     ;; Paste nothing there, unless it is a command, or the user wants it after
     ;; a prompt that has not arrived.
     ((and cli
           (or (not buffer)
               (and (not (qwen-companion-prompts--channel session buffer))
                    (qwen-companion-registry-open-p cli)
                    (not (string-prefix-p "/" text))
                    (not (and (qwen-companion-registry-failed-p cli)
                              (y-or-n-p (format "%s has not confirmed the last prompt; paste this one? "
                                                name)))))))
      (qwen-companion-registry-send cli root text))
     ((not buffer)
      (user-error "This CLI is not in a terminal of this Emacs and accepts no prompts from it"))
     ((and (buffer-local-value 'qwen-companion-terminal-outside buffer)
           (not (and (qwen-companion-prompts--channel session buffer)
                     (or (qwen-companion-cli-state-activity state)
                         (not (qwen-companion-session-no-hooks session))))))
      (user-error "The CLI of %s is outside of Emacs and accepts no prompts from it; type it there"
                  name))
     ((or (qwen-companion-cli-state-activity state)
          (qwen-companion-prompts--starting-p session buffer))
      (with-current-buffer buffer
        (setq qwen-companion-prompts--waiting
              (append qwen-companion-prompts--waiting
                      (list (qwen-companion-prompts--make-prompt
                             :text text :root root :time (qwen-companion-prompts--now)
                             :anyway anyway))))
        (qwen-companion-prompts--update session)
        (pcase (length qwen-companion-prompts--waiting)
          (0 (format "Sent to %s" name))
          (count (format "%s: %d %s %s"
                         name count (if (= count 1) "prompt waits" "prompts wait")
                         (if (eq 'asking (qwen-companion-cli-state-activity state))
                             "until its question is answered and its turn is over"
                           "until its turn is over"))))))
     ((and (qwen-companion-prompts-typed-p session buffer)
           (not (y-or-n-p (format "There is unsent text in %s; append the prompt to it? "
                                  name))))
      (user-error "Not sent: there is unsent text in %s" name))
     (t
      (qwen-companion-terminal-send-prompt buffer text)
      (format "Sent to %s" name)))))

(defun qwen-companion-prompts-start (root arguments text)
  "Start a CLI with ARGUMENTS in ROOT; it gets the prompt TEXT when it is ready."
  (letrec ((begin (lambda ()
                    (when (and (equal root qwen-companion-terminal-directory)
                               (equal arguments qwen-companion-terminal-arguments))
                      (remove-hook 'qwen-companion-terminal-opened-hook begin)
                      (setq qwen-companion-prompts--waiting
                            (list (qwen-companion-prompts--make-prompt
                                   :text text :root root :anyway t
                                   :time (qwen-companion-prompts--now))))))))
    (add-hook 'qwen-companion-terminal-opened-hook begin)
    (qwen-companion-terminal-open root arguments)))

(defun qwen-companion-prompts--starting-p (session buffer)
  "Return non-nil while SESSION in BUFFER has not reported that it is ready.
Prompts written to its file before that are lost."
  (and (qwen-companion-prompts--channel session buffer)
       (not (qwen-companion-session-no-hooks session))
       (not (qwen-companion-cli-state-activity (qwen-companion-session-state session)))))

(defun qwen-companion-prompts--channel (session buffer)
  "Return the address of SESSION in BUFFER for the `prompt' call, or nil.
This is the name of a local prompt file, or the session of a remote CLI.
The file is useless after the mode was off."
  (if (qwen-companion-session-prompts session)
      (list :session (qwen-companion-session-id session))
    (when-let* ((file (buffer-local-value 'qwen-companion-terminal-prompt-file buffer))
                (spool (qwen-companion-backend-spool)))
      (and (equal spool (file-name-directory file))
           (list :file file)))))

(defun qwen-companion-prompts-typed-p (session buffer)
  "Return non-nil if there is unsent text of SESSION in its terminal BUFFER.
If there is none, Qwen Code and Gemini CLI show an invitation."
  (and (qwen-companion-session-family session)
       (with-current-buffer buffer
         (save-excursion
           (goto-char (point-max))
           (not (search-backward "Type your message"
                                 (line-beginning-position (- (frame-height))) t))))))

(defun qwen-companion-prompts--update (session)
  "Send each prompt queued for SESSION if possible, in its terminal buffer."
  (let* ((state (qwen-companion-session-state session))
         (activity (qwen-companion-cli-state-activity state)))
    (when (and qwen-companion-prompts--sent
               (> (or (qwen-companion-cli-state-since state) 0)
                  qwen-companion-prompts--sent))
      (setq qwen-companion-prompts--sent nil))
    (when (memq activity '(cancelled failed))
      (qwen-companion-prompts--drop-cancelled
       (qwen-companion-cli-state-since state)
       (if (eq activity 'failed) "has failed" "was cancelled")))
    (when qwen-companion-prompts--waiting
      (cond
       ;; The CLI is starting, or has no hooks that report its start.
       ((null activity)
        (qwen-companion-prompts--later qwen-companion-prompts--hooks-seconds
                                       #'qwen-companion-prompts--paste-all))
       ((and (memq activity '(idle cancelled failed))
             (not qwen-companion-prompts--sent))
        (qwen-companion-prompts--send-next session))))))

(defun qwen-companion-prompts--send-next (session)
  "Send the first prompt queued for SESSION, in its terminal buffer."
  (let ((text (qwen-companion-prompts--prompt-text (car qwen-companion-prompts--waiting)))
        (channel (qwen-companion-prompts--channel session (current-buffer))))
    (if (and (not channel) (qwen-companion-prompts-typed-p session (current-buffer)))
        (qwen-companion-prompts--later qwen-companion-prompts--retry-seconds
                                       #'qwen-companion-prompts--update)
      (pop qwen-companion-prompts--waiting)
      (setq qwen-companion-prompts--sent (qwen-companion-prompts--now))
      (if channel
          (qwen-companion-backend-call 'prompt (append channel (qwen-companion-spool-pack text)))
        (qwen-companion-terminal-send-prompt (current-buffer) text))
      (qwen-companion-prompts--later qwen-companion-prompts--begin-seconds
                                     #'qwen-companion-prompts--begun))))

(defun qwen-companion-prompts--drop-cancelled (time how)
  "Drop each queued prompt that arrived before TIME, the end of a turn.
HOW says in words how the turn ended."
  (let ((dropped (seq-filter (lambda (prompt)
                               (and (not (qwen-companion-prompts--prompt-anyway prompt))
                                    (< (qwen-companion-prompts--prompt-time prompt) time)))
                             qwen-companion-prompts--waiting)))
    (when dropped
      (setq qwen-companion-prompts--waiting
            (seq-difference qwen-companion-prompts--waiting dropped #'eq))
      (message "qwen-companion: the turn %s: %s not sent, see the history in M-x qwen-companion-ask"
               how
               (if (cdr dropped)
                   (format "%d queued prompts were" (length dropped))
                 "a queued prompt was")))))

(defun qwen-companion-prompts--now ()
  "Return the time in milliseconds since the epoch."
  (floor (* 1000 (float-time))))

(defun qwen-companion-prompts--later (seconds function)
  "Call FUNCTION in this buffer with its session after SECONDS, if both exist."
  (qwen-companion-timers-cancel qwen-companion-prompts--timer)
  (setq qwen-companion-prompts--timer
        (run-at-time seconds nil #'qwen-companion-prompts--call-in
                     (current-buffer) function)))

(defun qwen-companion-prompts--call-in (buffer function)
  "Call FUNCTION in BUFFER with the session of that terminal, if there is one."
  (when-let* (((buffer-live-p buffer))
              (session (seq-find (lambda (session)
                                   (eq buffer (qwen-companion-terminal-session-buffer session)))
                                 (qwen-companion-backend-sessions))))
    (with-current-buffer buffer
      (funcall function session))))

(defun qwen-companion-prompts--begun (session)
  "Stop waiting for SESSION to begin with the last prompt."
  (setq qwen-companion-prompts--sent nil)
  (qwen-companion-prompts--update session))

(defun qwen-companion-prompts--paste-all (session)
  "Paste each prompt queued for SESSION, which has not reported being ready."
  (when-let* (((null (qwen-companion-cli-state-activity (qwen-companion-session-state session))))
              (prompts qwen-companion-prompts--waiting))
    (setq qwen-companion-prompts--waiting nil)
    (if qwen-companion-terminal-outside
        (message "qwen-companion: %s does not report its activity: not sent, see the history in M-x qwen-companion-ask"
                 (buffer-name))
      (qwen-companion-terminal-send-prompt
       (current-buffer)
       (mapconcat #'qwen-companion-prompts--prompt-text prompts "\n\n")))))

(defun qwen-companion-prompts-sessions-changed ()
  "Send each queued prompt of a CLI whose turn has ended."
  (when-let* ((buffers (delete-dups (mapcar #'car (qwen-companion-prompts-waiting)))))
    (dolist (session (qwen-companion-backend-sessions))
      (when-let* ((buffer (car (memq (qwen-companion-terminal-session-buffer session)
                                     buffers))))
        (with-current-buffer buffer
          (qwen-companion-prompts--update session))))))

(provide 'qwen-companion-prompts)
;;; qwen-companion-prompts.el ends here
