;;; qwen-companion-chat-send.el --- The prompt of a chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The prompt of a chat is edited like any text.  Sent prompts are in a
;; history, and a prompt that is not accepted is restored.  Files and slash
;; commands are completed.  Commands for other buffers insert a region, a
;; buffer, files or problems into the prompt.
;;
;; `@' and a name refer to a file.  The prompt is sent with a link to each such
;; file that exists in the daemon's workspace, as far as Emacs can see.  The
;; daemon reads that file, text or image, on its own host.  Other images, for
;; example from the clipboard, are sent themselves.

;;; Code:

(require 'cl-lib)
(require 'ring)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-chat-blocks)
(require 'qwen-companion-chat-state)
(require 'qwen-companion-completion)
(require 'qwen-companion-daemon)
(require 'qwen-companion-daemon-messages)
(require 'qwen-companion-problems)
(require 'qwen-companion-prompt-completion)
(require 'qwen-companion-prompts)
(require 'qwen-companion-quote)
(require 'qwen-companion-spool)
(require 'qwen-companion-untrusted)

(declare-function dired-get-marked-files "dired"
                  (&optional localp arg filter distinguish-one-marked error))

;;; Files in a prompt

(defconst qwen-companion-chat-send--link
  (concat "\\(?:^\\|[ \t\n(]\\)\\(@\\(" qwen-companion-prompt-completion-character "+\\)\\)")
  "Matches a file reference in a prompt; group 2 is the name, quoted.")

(defun qwen-companion-chat-send--workspace ()
  "Return the daemon's workspace as a local directory, or nil.
The daemon's name for it is untrusted: no file name handler is applied."
  (when-let* ((workspace (qwen-companion-daemon-workspace)))
    (let ((file-name-handler-alist nil))
      (and (file-name-absolute-p workspace)
           (file-directory-p workspace)
           (file-name-as-directory workspace)))))

(defun qwen-companion-chat-send--reference (file)
  "Return the reference to FILE: `@' and its name, relative to the workspace.
Outside of the workspace, the name is absolute."
  (concat "@" (qwen-companion-quote-escape
               (qwen-companion-quote-relative-name
                file (qwen-companion-chat-send--workspace)))))

(defun qwen-companion-chat-send--readable-p (file)
  "Return non-nil if the daemon can read FILE for a prompt, as far as Emacs sees.
If a link names a missing file or one outside of its workspace, symbolic
links followed, the daemon tells the model nothing of it (0.24.4)."
  (let ((file-name-handler-alist nil)
        (workspace (qwen-companion-chat-send--workspace)))
    (and workspace
         (file-exists-p file)
         (qwen-companion-untrusted-in-directory-p file workspace))))

(defun qwen-companion-chat-send--referenced-file (word)
  "Return the absolute name of the file that WORD, after `@', names, or nil.
Return nil, too, if the daemon would not read the file; it stays a word
then, and the model may still read the file with its tools.  Punctuation
at the end belongs to the name only if there is such a file."
  (let ((file-name-handler-alist nil)
        (workspace (or (qwen-companion-chat-send--workspace) "/")))
    (cl-loop for word in (delete-dups
                          (list word (string-trim-right word "[].,;:?!)}>\"']+")))
             for name = (expand-file-name (qwen-companion-quote-unescape word)
                                          workspace)
             when (and (not (string-empty-p word))
                       (qwen-companion-chat-send--readable-p name))
             return name)))

(defun qwen-companion-chat-send--referenced-image (word)
  "Return the absolute name of the image file of this machine that WORD names.
Return nil when WORD, after `@', is relative or names something else."
  (let* ((file-name-handler-alist nil)
         (name (qwen-companion-quote-unescape word))
         (case-fold-search t))
    (and (string-match-p "\\.\\(?:png\\|jpe?g\\|gif\\|webp\\|bmp\\)\\'" name)
         (file-name-absolute-p name)
         (file-regular-p name)
         (expand-file-name name))))

(defun qwen-companion-chat-send--references (text)
  "Return parts of a prompt for the files that TEXT refers to.
Each file has one part, in order: a link if the daemon reads the file,
else an image.  Ignore references in code blocks."
  (with-temp-buffer
    (insert text)
    (goto-char (point-min))
    (let (parts)
      (while (re-search-forward
              (concat qwen-companion-chat-send--link "\\|^[ \t]*\\(?3:```+\\)[^`\n]*$")
              nil t)
        (if-let* ((fence (match-string 3)))
            (unless (re-search-forward (format "^[ \t]*%s`*[ \t]*$" fence) nil t)
              (goto-char (point-max)))
          (let ((word (match-string-no-properties 2)))
            (if-let* ((file (qwen-companion-chat-send--referenced-file word)))
                (push (list :kind 'link :path file) parts)
              (when-let* ((image (qwen-companion-chat-send--referenced-image word)))
                (push (list :kind 'image :path image) parts))))))
      (delete-dups (nreverse parts)))))

(defun qwen-companion-chat-send--parts (text)
  "Return the parts of the prompt TEXT: the text, and its links and images.
Each link is on a line of its own after the text.  The text keeps the
names, because the daemon silently drops a link that it may not read."
  (let ((part (lambda (text)
                (append '(:kind text) (qwen-companion-spool-pack text)))))
    (cons (funcall part text)
          (mapcan (lambda (reference)
                    (list (funcall part "\n") reference))
                  (qwen-companion-chat-send--references text)))))

;;; Completion

(defvar-local qwen-companion-chat-send--commands nil
  "The slash commands of the session, a list of property lists.")

(defvar-local qwen-companion-chat-send-own-commands nil
  "Slash commands that are not sent to the daemon.
A list of (NAME DESCRIPTION FUNCTION); FUNCTION is called in the chat.")

(defun qwen-companion-chat-send-on-commands (payload)
  "Store the slash commands in the report PAYLOAD."
  (setq qwen-companion-chat-send--commands
        (mapcar (lambda (command)
                  (pcase (assoc (qwen-companion-daemon-command-name command)
                                qwen-companion-chat-send-own-commands)
                    (`(,name ,description ,_) (list :name name :description description))
                    (_ command)))
                (qwen-companion-daemon-commands-commands payload))))

(defun qwen-companion-chat-send--own-command (text)
  "Return the function for TEXT, a prompt, if it is one of our own commands."
  (and (string-match "\\`[ \t]*/\\([^ \t\n]+\\)[ \t]*\\'" text)
       (nth 2 (assoc (match-string 1 text) qwen-companion-chat-send-own-commands))))

(defun qwen-companion-chat-send--complete ()
  "Complete the file or the slash command before point, in the prompt.
For `completion-at-point-functions'."
  (when (>= (point) qwen-companion-chat-blocks-prompt-start)
    (or (qwen-companion-chat-send--complete-command)
        (when-let* ((workspace (qwen-companion-chat-send--workspace)))
          (qwen-companion-prompt-completion-file
           workspace qwen-companion-chat-blocks-prompt-start)))))

(defun qwen-companion-chat-send--complete-command ()
  "Complete a slash command at the beginning of the prompt."
  (let ((start (save-excursion
                 (goto-char qwen-companion-chat-blocks-prompt-start)
                 (skip-chars-forward " \t\n")
                 (point))))
    (when (and (< start (point))
               (eq ?/ (char-after start))
               (save-excursion
                 (goto-char start)
                 (skip-chars-forward "^ \t\n")
                 (<= start (point) (line-end-position)))
               (not (string-match-p "[ \t\n]" (buffer-substring start (point)))))
      (let ((commands (mapcar (lambda (command)
                                (cons (qwen-companion-daemon-command-name command) command))
                              qwen-companion-chat-send--commands)))
        (list (1+ start)
              (save-excursion (skip-chars-forward "^ \t\n") (point))
              commands
              :exclusive 'no
              :annotation-function
              (lambda (name)
                (qwen-companion-chat-send--annotation
                 (cdr (assoc name commands)))))))))

(defun qwen-companion-chat-send--annotation (command)
  "Return the annotation of the slash COMMAND for completion."
  (let ((text (string-join
               (delete "" (list (or (qwen-companion-daemon-command-hint command) "")
                                (or (qwen-companion-daemon-command-description command) "")))
               "  ")))
    (if (string-empty-p text)
        ""
      (concat "  " (truncate-string-to-width
                    (qwen-companion-untrusted-text text) 80 nil nil t)))))

(defun qwen-companion-chat-send-enable ()
  "Enable completion and the history in the prompt of the current buffer."
  (add-hook 'kill-buffer-hook #'qwen-companion-chat-send--keep-edits nil t)
  ;; `text-mode' of Emacs 30 adds it, and it signals an error without a list of
  ;; words.
  (remove-hook 'completion-at-point-functions 'ispell-completion-at-point t)
  (add-hook 'completion-at-point-functions #'qwen-companion-chat-send--complete nil t))

;;; Sending from other buffers

(defun qwen-companion-chat-send--target-chat ()
  "Return the most recent chat; with a prefix argument, let the user choose."
  (let ((chats (or (qwen-companion-chat-buffers)
                   (user-error "No chat; M-x qwen-companion-chat begins one"))))
    (if (and current-prefix-arg (cdr chats))
        (get-buffer
         (completing-read
          "Send to: "
          (qwen-companion-completion-table (mapcar #'buffer-name chats) 'buffer)
          nil t))
      (car chats))))

(defun qwen-companion-chat-send--insert (text)
  "Insert TEXT at the end of the prompt of a chat, and go there.
Do not send it."
  (pop-to-buffer (qwen-companion-chat-send--target-chat))
  (goto-char (point-max))
  (unless (or (= (point) qwen-companion-chat-blocks-prompt-start) (bolp))
    (insert "\n"))
  (insert text))

;;;###autoload
(defun qwen-companion-chat-send-region (&optional start end)
  "Insert the region, else the whole buffer, into the prompt of a chat.
Quote it, from START to END, with its file and lines, as it is in the
buffer, saved or not.  The chat is the one used last; with a prefix
argument, choose."
  (interactive (and (use-region-p) (list (region-beginning) (region-end))))
  (when (derived-mode-p 'qwen-companion-chat-mode)
    (user-error "This is a chat; go to the buffer to send"))
  (save-restriction
    (unless start
      (widen))
    (when (= (or start (point-min)) (or end (point-max)))
      (user-error "No text to send"))
    (let ((workspace (qwen-companion-chat-send--workspace))
          (source (current-buffer)))
      (qwen-companion-chat-send--insert
       (if start
           (qwen-companion-quote-region start end workspace)
         (qwen-companion-quote-code-block
          (concat (qwen-companion-quote-title workspace)
                  (if (and (buffer-file-name) (buffer-modified-p)) " (not saved)" ""))
          (point-min) (point-max))))
      ;; Sent again, the whole buffer is meant.
      (with-current-buffer source
        (deactivate-mark)))))

(defun qwen-companion-chat-send--require-local (files)
  "Signal a `user-error' when one of FILES is on another machine."
  (when-let* ((remote (cl-find-if #'file-remote-p files)))
    (user-error "%s is on another machine; send its text with M-x qwen-companion-chat-send-region"
                (qwen-companion-untrusted-text remote))))

(defun qwen-companion-chat-send--insert-files (files)
  "Insert references to FILES into the prompt of a chat.
Show a message about those that the daemon will not read."
  (qwen-companion-chat-send--insert
   (concat (mapconcat #'qwen-companion-chat-send--reference files " ") " "))
  (when-let* ((unread (and (qwen-companion-daemon-workspace)
                           (cl-remove-if #'qwen-companion-chat-send--readable-p files))))
    (message "Outside of the daemon's workspace, so only the name is sent: %s; M-x qwen-companion-chat-send-region sends the text"
             (mapconcat #'qwen-companion-untrusted-text unread ", "))))

;;;###autoload
(defun qwen-companion-chat-send-file (files)
  "Insert references to FILES, by default this one, into a chat's prompt.
In Dired, these are the marked ones; in a buffer without a file, ask.  The
daemon reads them, from its own disk, when the prompt is sent.  The chat
is the one used last; with a prefix argument, which is Dired's there,
choose."
  (interactive (list (cond ((derived-mode-p 'dired-mode)
                            (dired-get-marked-files nil current-prefix-arg nil nil t))
                           ((buffer-file-name) (list (buffer-file-name)))
                           (t (list (read-file-name "Send file: " nil nil t))))))
  (let ((files (ensure-list files))
        (current-prefix-arg (and (not (derived-mode-p 'dired-mode)) current-prefix-arg)))
    (qwen-companion-chat-send--require-local files)
    (dolist (file files)
      (when-let* ((buffer (find-buffer-visiting file))
                  ((buffer-modified-p buffer)))
        (message "%s has unsaved text; the daemon will read the file on disk" buffer)))
    (qwen-companion-chat-send--insert-files files)))

;;; Problems

;;;###autoload
(defun qwen-companion-chat-send-problems (start end)
  "Insert the problems of Flymake and Flycheck into the prompt of a chat.
Use the region, from START to END, when it is active, else the whole
buffer.  The chat is the one used last; with a prefix argument, choose."
  (interactive (if (use-region-p)
                   (list (region-beginning) (region-end))
                 (list (point-min) (point-max))))
  (unless (qwen-companion-problems-checked-p)
    (user-error "Neither Flymake nor Flycheck is on in this buffer"))
  (qwen-companion-chat-send--insert
   (or (qwen-companion-quote-problems start end (qwen-companion-chat-send--workspace))
       (user-error "No problems here"))))

;;; The prompt

(defcustom qwen-companion-chat-return 'newline
  "The effect of RET in the prompt: `newline' inserts one, `send' sends.
With `send', `electric-newline-and-maybe-indent' inserts a newline."
  :group 'qwen-companion
  :type '(choice (const :tag "Begins a new line" newline)
                 (const :tag "Sends the prompt" send)))

(defvar qwen-companion-chat-send--history (make-ring 100)
  "Ring of the prompts sent from all chats.")

(defvar-local qwen-companion-chat-send--accepted nil
  "Alist (TURN . TEXT) of the prompts of turns that have not ended.")

(defvar-local qwen-companion-chat-send--kept nil
  "The prompts to be sent once the session can accept them, oldest first.")

;;; The text

(defun qwen-companion-chat-send--text ()
  "Return the text of the prompt."
  (qwen-companion-buffers-require-mode 'qwen-companion-chat-mode)
  (buffer-substring-no-properties qwen-companion-chat-blocks-prompt-start (point-max)))

(defun qwen-companion-chat-send--set-text (text)
  "Replace the prompt by TEXT."
  (save-restriction
    (widen)
    (delete-region qwen-companion-chat-blocks-prompt-start (point-max))
    (save-excursion
      (goto-char (point-max))
      (insert text))))

(defun qwen-companion-chat-send-restore (text)
  "Insert TEXT at the beginning of the prompt."
  (qwen-companion-buffers-widened
    (goto-char qwen-companion-chat-blocks-prompt-start)
    (insert text)
    (unless (eobp)
      (insert "\n"))))

(defun qwen-companion-chat-send-as-sent (text)
  "Return the prompt of the history that is shown as TEXT in a conversation.
There, links to its files come after it.  Return TEXT if there is none."
  (or (seq-find (lambda (sent)
                  (and (not (string-blank-p sent)) (string-prefix-p sent text)))
                (ring-elements qwen-companion-chat-send--history))
      text))

(defun qwen-companion-chat-send-empty-p ()
  "Return non-nil when the prompt is empty."
  (and (null qwen-companion-chat-send--kept)
       (string-blank-p (qwen-companion-chat-send--text))))

(defun qwen-companion-chat-send-unsent ()
  "Return the prompt, after those that wait for the session, or nil for none."
  (unless (qwen-companion-chat-send-empty-p)
    (string-join (append qwen-companion-chat-send--kept
                         (list (qwen-companion-chat-send--text)))
                 "\n")))

;;; Images

(defun qwen-companion-chat-paste-image ()
  "Insert a reference to the image of the clipboard into the prompt.
The image is sent with the prompt.  If the model is known to accept none,
the prompt is restored instead."
  (interactive nil qwen-companion-chat-mode)
  (let ((file (qwen-companion-spool-clipboard-image)))
    (when (< (point) qwen-companion-chat-blocks-prompt-start)
      (goto-char (point-max)))
    (unless (memq (char-before) '(?\s ?\n))
      (insert " "))
    (insert "@" (qwen-companion-quote-escape file) " ")))

;;; Sending

(defun qwen-companion-chat-send ()
  "Send the prompt.
While the daemon is busy, it waits in the daemon's queue; while the
session is being opened or the connection is lost, it waits here.  A
prompt that is not accepted is restored."
  (interactive nil qwen-companion-chat-mode)
  (let ((text (string-trim (qwen-companion-chat-send--text) "[\n]+")))
    (when-let* ((refusal
                 (pcase (qwen-companion-daemon-session-state qwen-companion-chat-session)
                   ('off "Disconnected from the daemon; M-x qwen-companion-chat here connects again")
                   ('closed "This session was left; \\[qwen-companion-chat-reload] attaches to it again")
                   ('dead "This session has ended; \\[qwen-companion-chat-reload] loads it again"))))
      (user-error "%s" (substitute-command-keys refusal)))
    (when (string-blank-p text)
      (user-error "The prompt is empty"))
    (qwen-companion-prompts-set-edit nil)
    (qwen-companion-chat-send--keep-edits)
    (qwen-companion-chat-send--remember text)
    (qwen-companion-chat-send--set-text "")
    (set-buffer-modified-p nil)
    (if-let* ((own (qwen-companion-chat-send--own-command text)))
        (funcall own)
      (setq qwen-companion-chat-send--kept
            (append qwen-companion-chat-send--kept (list text)))
      (run-hooks 'qwen-companion-chat-session-hook)
      (goto-char (point-max)))))

(defun qwen-companion-chat-send-kept ()
  "Send each prompt that waits here, or restore it to the input if unsendable."
  (when qwen-companion-chat-send--kept
    (pcase (qwen-companion-daemon-session-state qwen-companion-chat-session)
      ((and (or 'idle 'busy 'waiting 'cancelling) (guard qwen-companion-chat-session-id))
       (while qwen-companion-chat-send--kept
         ;; First, because it may be restored at once.
         (let ((text (pop qwen-companion-chat-send--kept)))
           (condition-case err
               (qwen-companion-chat-send-text text)
             (error (qwen-companion-chat-send-restore text)
                    (signal (car err) (cdr err)))))))
      ((or 'off 'closed 'dead)
       (qwen-companion-chat-send--give-back)))))

(defun qwen-companion-chat-send--give-back ()
  "Move each prompt that waits here back into the input."
  (let ((texts qwen-companion-chat-send--kept))
    (setq qwen-companion-chat-send--kept nil)
    (qwen-companion-chat-send-restore (string-join texts "\n\n"))))

(defun qwen-companion-chat-send-kept-text ()
  "Return a short text about any prompt that waits here, or nil."
  (when-let* ((kept qwen-companion-chat-send--kept))
    (substitute-command-keys
     (format "\\<qwen-companion-chat-mode-map>%s once the session is there, \\[qwen-companion-chat-cancel] takes %s back"
             (if (cdr kept) (format "%d prompts are sent" (length kept)) "the prompt is sent")
             (if (cdr kept) "them" "it")))))

(defun qwen-companion-chat-send-text (text)
  "Send TEXT as a prompt; the prompt being edited stays."
  (qwen-companion-chat-send--submit (qwen-companion-chat-send--parts text) text))

(defun qwen-companion-chat-send--submit (parts text)
  "Send PARTS as a prompt; restore TEXT if the daemon does not accept them."
  (qwen-companion-chat-call
   'daemon-prompt (list :session qwen-companion-chat-session-id :parts parts)
   (lambda (reply)
     (if-let* ((error (qwen-companion-daemon-reply-error reply)))
         (progn
           (qwen-companion-chat-send-restore text)
           (qwen-companion-backend-notice
            (if (eq 'unsure (qwen-companion-daemon-reply-problem reply))
                (format "%s  The prompt may have been sent; check the chat before you send it again" error)
              error)))
       (setf (alist-get (qwen-companion-daemon-reply-turn reply)
                        qwen-companion-chat-send--accepted nil nil #'equal)
             text)))))

(defun qwen-companion-chat-send-on-end (change)
  "Forget the prompt of the turn that ends with CHANGE.
If it was lost before its turn began, move it back into the input, and
return non-nil."
  (let ((sent (assoc (qwen-companion-daemon-change-turn change)
                     qwen-companion-chat-send--accepted)))
    (setq qwen-companion-chat-send--accepted (delq sent qwen-companion-chat-send--accepted))
    (when (and sent (eq 'lost (qwen-companion-daemon-end-outcome change)))
      (qwen-companion-chat-send-restore (cdr sent))
      t)))

(defun qwen-companion-chat-cancel ()
  "Cancel the running turn of this chat.
If a prompt still waits here for the session, take it back instead."
  (interactive nil qwen-companion-chat-mode)
  (let ((state (qwen-companion-daemon-session-state qwen-companion-chat-session)))
    (cond
     (qwen-companion-chat-send--kept
      (qwen-companion-chat-send--give-back)
      (run-hooks 'qwen-companion-chat-session-hook))
     ((not (memq state '(busy waiting)))
      (user-error "Nothing to cancel: the session is %s" (or state "not there yet")))
     (t (qwen-companion-chat-call
         'daemon-cancel (list :session qwen-companion-chat-session-id))))))

;;; The daemon's queue

(defun qwen-companion-chat-send--read-queued ()
  "Return a prompt of the daemon's queue; ask where there are several."
  (let ((choices (mapcar (lambda (queued)
                           (cons (qwen-companion-untrusted-line
                                  (qwen-companion-daemon-queued-text queued))
                                 queued))
                         (qwen-companion-daemon-session-queue qwen-companion-chat-session))))
    (unless choices
      (user-error "No prompt is queued"))
    (if (cdr choices)
        (qwen-companion-completion-read "Remove from the queue: " choices 'qwen-companion-prompt)
      (cdar choices))))

(defun qwen-companion-chat-remove-queued (queued)
  "Remove QUEUED, a prompt that waits for the running turn, from the queue.
Restore a prompt of your own, to be edited.  Interactively, choose it if
several are queued."
  (interactive (list (qwen-companion-chat-send--read-queued)) qwen-companion-chat-mode)
  (qwen-companion-chat-call
   'daemon-remove-prompt
   (list :session qwen-companion-chat-session-id :turn (qwen-companion-daemon-queued-turn queued))
   (lambda (reply)
     (cond ((qwen-companion-daemon-reply-error reply)
            (qwen-companion-backend-notice (qwen-companion-daemon-reply-error reply)))
           ((eq 'me (qwen-companion-daemon-queued-by queued))
            (qwen-companion-chat-send-restore
             ;; The queue has only the beginning of a long one.
             (alist-get (qwen-companion-daemon-queued-turn queued)
                        qwen-companion-chat-send--accepted
                        (qwen-companion-daemon-queued-text queued) nil #'equal)))))))

(defun qwen-companion-chat-return ()
  "Insert a newline in the prompt or send it.
See the option of the same name."
  (interactive nil qwen-companion-chat-mode)
  (qwen-companion-buffers-require-mode 'qwen-companion-chat-mode)
  (cond ((< (point) qwen-companion-chat-blocks-prompt-start)
         (user-error "The conversation is read-only; the prompt is below it"))
        ((eq qwen-companion-chat-return 'send) (qwen-companion-chat-send))
        (t (newline nil t))))

;;; History

(defun qwen-companion-chat-send--remember (text)
  "Make TEXT the newest prompt of the history unless it is blank."
  (unless (string-blank-p text)
    (ring-remove+insert+extend qwen-companion-chat-send--history text)))

(defun qwen-companion-chat-send--keep-edits ()
  "Add each edited prompt to the history, and drop its edits."
  (qwen-companion-prompts-save-edits #'qwen-companion-chat-send--remember))

(defun qwen-companion-chat-send--show (text)
  "Make TEXT, one of the history, the prompt."
  (qwen-companion-chat-send--set-text text)
  (goto-char (point-max)))

(defun qwen-companion-chat-previous-prompt (&optional count)
  "Show the COUNTth previous prompt of the history; keep edits of this one."
  (interactive "p" qwen-companion-chat-mode)
  (qwen-companion-chat-send--show
   (qwen-companion-prompts-previous (ring-elements qwen-companion-chat-send--history)
                                    (or count 1) (qwen-companion-chat-send--text))))

(defun qwen-companion-chat-next-prompt (&optional count)
  "Show the COUNTth next prompt of the history, at last the unsent one."
  (interactive "p" qwen-companion-chat-mode)
  (qwen-companion-chat-previous-prompt (- (or count 1))))

(defun qwen-companion-chat-search-prompt (text)
  "Replace the prompt by TEXT, chosen from the history."
  (interactive
   (progn
     (qwen-companion-buffers-require-mode 'qwen-companion-chat-mode)
     (list (completing-read "Prompt: " (ring-elements qwen-companion-chat-send--history) nil t)))
   qwen-companion-chat-mode)
  (qwen-companion-chat-send--show
   (qwen-companion-prompts-show text (qwen-companion-chat-send--text))))

(provide 'qwen-companion-chat-send)
;;; qwen-companion-chat-send.el ends here
